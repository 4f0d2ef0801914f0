# Writes an authority as `ca init` makes it, but valid from 400 days ago to 10 days ago.
import datetime, sys
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
key = ec.generate_private_key(ec.SECP256R1())
name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "expired")])
days = lambda n: datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=n)
usage = dict.fromkeys(["digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
                       "key_agreement", "encipher_only", "decipher_only"], False)
certificate = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    .serial_number(x509.random_serial_number()).not_valid_before(days(-400)).not_valid_after(days(-10))
    .add_extension(x509.BasicConstraints(True, 0), critical=True)
    .add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True)
    .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    .sign(key, hashes.SHA256()))
pkcs8 = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
with open(sys.argv[1], "wb") as file:
    file.write(pkcs8 + certificate.public_bytes(serialization.Encoding.PEM))
