# Makes a root, the certificates of the origins, and certificates that are expired or self-signed.
cd DIR
key() { openssl ecparam -name prime256v1 -genkey -noout -out $1.key; }
key root
openssl req -x509 -new -key root.key -days 30 -subj "/CN=Test Root" -out root.pem \
    -addext keyUsage=critical,keyCertSign,cRLSign 2>/dev/null
sign() { openssl x509 -req -in $1.csr -extfile $1.ext -out $1.pem -CA root.pem -CAkey root.key \
    -CAcreateserial -days ${2:-20} 2>/dev/null; }
request() { key $1; openssl req -new -key $1.key -subj "/CN=$1" -out $1.csr; \
    printf "subjectAltName=$2\nextendedKeyUsage=serverAuth\n" > $1.ext; }
request expired DNS:expired.test
sign expired 0
signed=$(date +%s)
request origin DNS:a.test,DNS:b.test,DNS:h1.test,IP:10.81.0.1
sign origin
request self-signed DNS:self-signed.test
openssl x509 -req -in self-signed.csr -extfile self-signed.ext -signkey self-signed.key \
    -out self-signed.pem -days 20 2>/dev/null
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=openssl.test \
    -addext subjectAltName=DNS:openssl.test -keyout openssl.key -out openssl.pem 2>/dev/null
# The certificate of `expired` is valid until the second in which it was signed is over.
while [ $(date +%s) -le $signed ]; do sleep 0.05; done
