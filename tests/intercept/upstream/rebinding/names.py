# A name server that answers each query for a name with the next of its labels. The label here-self means two addresses.
import socket, struct
addresses = {"here": "10.81.0.1", "self": "127.0.0.1", "meta": "169.254.169.254"}
asked = {}
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
print("ready")
while True:
    question, client = server.recvfrom(512)
    labels, at = [], 12
    while question[at]:
        labels.append(question[at + 1:at + 1 + question[at]].decode())
        at += 1 + question[at]
    kind, = struct.unpack_from(">H", question, at + 1)
    found = []
    if kind == 1 and labels[-2:] == ["rebind", "test"]:
        name = ".".join(labels).lower()
        answers = labels[1:-2]
        answer = answers[asked.get(name, 0) % len(answers)]
        asked[name] = asked.get(name, 0) + 1
        found = [addresses[label] for label in answer.split("-")]
        print(name, found)
    head = question[:2] + struct.pack(">HHHHH", 0x8580, 1, len(found), 0, 0)
    body = question[12:at + 5]
    for address in found:
        body += b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 0, 4) + socket.inet_aton(address)
    server.sendto(head + body, client)
