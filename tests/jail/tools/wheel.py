# Writes an index of Python packages with one wheel.
import os, sys, zipfile
directory = sys.argv[1] + "/simple/tiny"
os.makedirs(directory)
name = "tiny-1.0-py3-none-any.whl"
with zipfile.ZipFile(directory + "/" + name, "w") as wheel:
    wheel.writestr("tiny.py", "TEXT = 'from the mirror'\n")
    wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
    wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("tiny-1.0.dist-info/RECORD", "tiny.py,,\n")
open(directory + "/index.html", "w").write(f"<!DOCTYPE html><a href='{name}'>{name}</a>")
