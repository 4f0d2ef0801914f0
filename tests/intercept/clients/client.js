// GET through CONNECT, with nothing but what comes with Node.
const http = require('http');
const https = require('https');
const tls = require('tls');

const proxy = new URL(process.env.https_proxy);
const url = new URL(process.argv[2]);
const to = `${url.hostname}:${url.port || 443}`;
const connect = http.request({
  host: proxy.hostname,
  port: proxy.port,
  method: 'CONNECT',
  path: to,
  headers: { host: to }, // Node would name the proxy
});

connect.on('connect', (answer, socket) => {
  if (answer.statusCode !== 200) {
    console.log('CONNECT', answer.statusCode);
    return socket.destroy();
  }
  const agent = new https.Agent();
  agent.createConnection = () => tls.connect({ socket, servername: url.hostname });
  https.get(url, { agent }, (answer) => {
    process.stdout.write(`${answer.statusCode} `);
    answer.pipe(process.stdout);
  });
});
connect.end();
