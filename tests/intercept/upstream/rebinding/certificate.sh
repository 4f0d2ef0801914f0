# Makes a certificate for the names that names.py answers.
cd DIR
names=
for name in here.self here.meta self.here meta.here here-self self-here meta-here-self meta-self; do
    names="$names,DNS:https.$name.rebind.test"
done
openssl ecparam -name prime256v1 -genkey -noout -out wild.key
openssl req -new -key wild.key -subj /CN=wild -out wild.csr
printf "subjectAltName=${names#,}\nextendedKeyUsage=serverAuth\n" > wild.ext
openssl x509 -req -in wild.csr -extfile wild.ext -out wild.pem -CA root.pem -CAkey root.key -CAcreateserial \
    -days 20 2>/dev/null
