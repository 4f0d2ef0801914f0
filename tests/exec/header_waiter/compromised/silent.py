# Follows server.py: keeps hundreds of channels open, without a request.
kept = []
while True:
    kept.append(channel())
    if len(kept) == 200:
        print("begun")
    if len(kept) > 500:
        kept.pop(0)
