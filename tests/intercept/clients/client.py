"""A GET by the library `requests`, which verifies certificates more strictly here than by default."""

import ssl
import sys

import requests
from requests.adapters import HTTPAdapter


class Strict(HTTPAdapter):
    def init_poolmanager(self, *args, **kwargs):
        super().init_poolmanager(*args, ssl_context=strict(), **kwargs)

    def proxy_manager_for(self, proxy, **kwargs):
        return super().proxy_manager_for(proxy, ssl_context=strict(), **kwargs)


def strict():
    context = ssl.create_default_context()
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


session = requests.Session()
session.mount("https://", Strict())
answer = session.get(sys.argv[1], timeout=20)
print(answer.status_code, answer.text)
