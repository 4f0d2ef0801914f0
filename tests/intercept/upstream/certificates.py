"""Certificates that no client may accept, and for each a counterpart without the flaw.

    certificates.py DIR    the root and the proxy's authority are there already; adds DIR/HOST.pem and DIR/HOST.key
"""
import datetime
import os
import shutil
import ssl
import subprocess
import sys

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID as Usage, NameOID

os.chdir(sys.argv[1])


class Issuer:
    def __init__(self, name, key):
        self.name, self.key = name, key
        # The certificates between the root and the leaf, as PEM.
        self.chain = b""


def new_key():
    return ec.generate_private_key(ec.SECP256R1())


def rsa_key(bits):
    return rsa.generate_private_key(65537, bits)


def named(name):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def read_key(path):
    return serialization.load_pem_private_key(open(path, "rb").read(), None)


def write_key(path, key):
    form = serialization.PrivateFormat.TraditionalOpenSSL
    pem = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    open(path, "wb").write(pem)


def sign(subject, key, issuer, extensions, digest=hashes.SHA256(), days=(-1, 20)):
    """One certificate as PEM. `extensions` are pairs of a value and whether it is critical."""
    now = datetime.datetime.utcnow()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.name)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days[0]))
        .not_valid_after(now + datetime.timedelta(days[1]))
    )
    for value, critical in extensions:
        builder = builder.add_extension(value, critical)
    return builder.sign(issuer.key, digest).public_bytes(serialization.Encoding.PEM)


def intermediate(name, above, key=None, is_ca=True, length=None, constraints=None, **how):
    key = key or new_key()
    extensions = [(x509.BasicConstraints(is_ca, length if is_ca else None), True)]
    if constraints:
        extensions.append((constraints, True))
    issuer = Issuer(named(name), key)
    issuer.chain = sign(issuer.name, key.public_key(), above, extensions, **how) + above.chain
    return issuer


def leaf(host, issuer=None, key=None, san=(), usage=(Usage.SERVER_AUTH,), more=(), **how):
    """`san` replaces the host's own name."""
    key, issuer = key or new_key(), issuer or ROOT
    names = [x509.DNSName(name) for name in ([host] if san == () else san)]
    extensions = [(x509.ExtendedKeyUsage(usage), False), *more]
    if names:
        extensions.append((x509.SubjectAlternativeName(names), False))
    chain = sign(named(host), key.public_key(), issuer, extensions, **how) + issuer.chain
    open(f"{host}.pem", "wb").write(chain)
    write_key(f"{host}.key", key)


def pair(name, flaw, good=None):
    """The host with a flaw, and another without."""
    leaf(f"{name}.test", **flaw)
    leaf(f"ok-{name}.test", **(good or {}))


def dns(*names):
    return [x509.DNSName(name) for name in names]


ROOT = Issuer(named("Test Root"), read_key("root.key"))
# A second root, of RSA, in the file of roots that the proxy is given.
RSA_ROOT = Issuer(named("Test Root of RSA"), rsa_key(2048))
with open("root.pem", "ab") as trusted:
    public_key = RSA_ROOT.key.public_key()
    ca = (x509.BasicConstraints(True, None), True)
    trusted.write(sign(RSA_ROOT.name, public_key, RSA_ROOT, [ca]))

pair("not-yet-valid", {"days": (1, 20)})
pair("long-expired", {"days": (-20, -1)})
pair("nul", {"san": ["nul.test\0.evil.test"]})
pair("cn-only", {"san": []})
pair("cn-beside-san", {"san": ["evil.test"]})
pair("ecdsa-sha1", {"digest": hashes.SHA1()})
pair("rsa-sha1", {"issuer": RSA_ROOT, "digest": hashes.SHA1()}, {"issuer": RSA_ROOT})
pair("rsa-1024", {"key": rsa_key(1024)}, {"key": rsa_key(2048)})
pair("client-auth", {"usage": [Usage.CLIENT_AUTH]}, {"usage": [Usage.CLIENT_AUTH, Usage.SERVER_AUTH]})
unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.99999.1"), b"\5\0")
pair("critical", {"more": [(unknown, True)]}, {"more": [(unknown, False)]})

pair("rsa-1024-issuer",
     {"issuer": intermediate("RSA of 1024 bits", ROOT, rsa_key(1024))},
     {"issuer": intermediate("RSA of 2048 bits", ROOT, rsa_key(2048))})
pair("no-ca", {"issuer": intermediate("no CA", ROOT, is_ca=False)}, {"issuer": intermediate("CA", ROOT)})
pair("expired-issuer",
     {"issuer": intermediate("expired", ROOT, days=(-20, -1))},
     {"issuer": intermediate("valid", ROOT, days=(-20, 20))})
pair("path-length",
     {"issuer": intermediate("second of one", intermediate("no more below", ROOT, length=0))},
     {"issuer": intermediate("second of two", intermediate("one more below", ROOT, length=1))})
permitted = x509.NameConstraints(dns("elsewhere.test", "ok-permitted.test"), None)
permitted = intermediate("permitted", ROOT, constraints=permitted)
pair("permitted", {"issuer": permitted}, {"issuer": permitted})
excluded = x509.NameConstraints(None, dns("excluded.test"))
excluded = intermediate("excluded", ROOT, constraints=excluded)
pair("excluded", {"issuer": excluded}, {"issuer": excluded})

# Wildcards: each flawed host has a counterpart that is matched, by the same certificate where possible.
for host in ("a.deep.test", "a.b.deep.test", "deep.test"):
    leaf(host, san=["*.deep.test"])
leaf("bad.partial.test", san=["b*.partial.test"])
leaf("ok.partial.test", san=["*.partial.test"])
leaf("a.b.stars.test", san=["*.*.stars.test"])
leaf("ok.stars.test", san=["*.stars.test"])
leaf("inner.star.test", san=["inner.*.test"])
leaf("ok.star.test", san=["*.star.test"])
leaf("star", san=["*"])
leaf("ok-star", san=["ok-star"])

# For old versions of TLS: a valid certificate, and a group for Diffie-Hellman, of RFC 7919.
leaf("old.test", issuer=RSA_ROOT, key=rsa_key(2048))
subprocess.run(["openssl", "genpkey", "-genparam", "-algorithm", "DH", "-pkeyopt", "group:ffdhe2048", "-out", "dh.pem"],
               check=True)

# Chains with the proxy's own authority, and leaves with its key. One file has the authority's key and certificate.
OURS = read_key("ca/authority.pem")
own = x509.load_pem_x509_certificate(open("ca/authority.pem", "rb").read().split(b"-----END PRIVATE KEY-----")[1])
forger = Issuer(own.subject, OURS)
leaf("forged-alone.test", issuer=forger)
forger.chain = own.public_bytes(serialization.Encoding.PEM)
leaf("forged.test", issuer=forger)
crossed = intermediate("crossed", ROOT, OURS)
open("crossed.crt", "wb").write(crossed.chain)
leaf("crossed.test", issuer=crossed)
leaf("ok-crossed.test", issuer=intermediate("ok-crossed", ROOT))
leaf("own-key.test", key=OURS)
leaf("ok-own-key.test")


def compressed(name, key):
    """An intermediate with its key written as a compressed point, which the library does not support."""
    write_key(f"{name}.key", key)
    open("compressed.ext", "w").write("basicConstraints=critical,CA:TRUE\n")
    script = f"""
        openssl pkey -in {name}.key -pubout -ec_conv_form compressed -out {name}.pub
        openssl req -new -key {name}.key -subj /CN={name} -out {name}.csr
        openssl x509 -req -in {name}.csr -force_pubkey {name}.pub -extfile compressed.ext -days 20 \
            -CA root.pem -CAkey root.key -out {name}.crt 2>/dev/null
        openssl asn1parse -in {name}.crt -dump | grep -A1 prime256v1 | grep -q "l=  34.*BIT STRING"
    """
    subprocess.run(["sh", "-ec", script], check=True)
    issuer = Issuer(named(name), key)
    issuer.chain = open(f"{name}.crt", "rb").read()
    return issuer


leaf("compressed.test", issuer=compressed("compressed", OURS))
leaf("ok-compressed.test", issuer=compressed("ok-compressed", new_key()))


def changed(pem, change):
    """The chain with this change to the bytes of its first certificate."""
    end = "-----END CERTIFICATE-----\n"
    first, rest = pem.split(end, 1)
    return ssl.DER_cert_to_PEM_cert(change(ssl.PEM_cert_to_DER_cert(first + end))) + rest


# One certificate, shown by several hosts: for a host that it does not name; with an invalid signature; with the signature of
# another certificate; and with another authority of its issuer's name.
above = intermediate("above", ROOT)
impostor = intermediate("above", ROOT)
leaf("seen.test", issuer=above, san=["seen.test", "changed.test", "impostor.test"])
seen = open("seen.test.pem").read()
for host, pem in (
    ("elsewhere.test", seen),
    ("changed.test", changed(seen, lambda der: der[:-1] + bytes([der[-1] ^ 1]))),
    ("sewn.test", changed(seen, lambda der: der.replace(b"seen.test", b"sewn.test"))),
    ("impostor.test", seen.replace(above.chain.decode(), impostor.chain.decode())),
):
    open(f"{host}.pem", "w").write(pem)
    shutil.copy("seen.test.key", f"{host}.key")
# Made last, because it is valid for nine seconds only.
leaf("soon.test", issuer=above, days=(-1, 9 / 86400))
