# Makes certificates for a check service and for its client.
cd DIR
make() {
    openssl ecparam -name prime256v1 -genkey -noout -out $1.key
    openssl req -new -key $1.key -subj "/CN=$1" -out $1.csr
    printf "$2\n" > $1.ext
    openssl x509 -req -in $1.csr -extfile $1.ext -out $1.pem -CA root.pem -CAkey root.key \
        -CAcreateserial -days 20 2>/dev/null
}
make server "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth"
make client "extendedKeyUsage=clientAuth"
