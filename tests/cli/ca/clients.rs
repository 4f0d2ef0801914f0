//! Clients: each trusts the host's roots only, until its shell has evaluated `peername ca env`.

use crate::harness::lab::{assert_contains, stderr_text, stdout_text};
use std::process::Output;

use crate::harness::rig::ca::{CaRig, server};

/// Asserts that the client fails without the variables of `ca env`, and succeeds with them. So a client that verifies
/// nothing does not pass.
fn assert_trusts_only_with_our_variables(rig: &CaRig, client: &str) {
    let without = run_client(rig, client);
    assert!(!without.status.success(), "verifies nothing: {client}");
    let with = run_client(
        rig,
        &format!("eval \"$($PEERNAME ca env --ca $CA --into $DIR)\"; {client}"),
    );
    let printed = stdout_text(&with);
    assert!(
        with.status.success() && printed.contains(server::BODY),
        "{client}: {with:?}"
    );
}

/// Runs a client with the environment of the test run cleared.
fn run_client(rig: &CaRig, script: &str) -> Output {
    rig.shell(&format!(
        "unset SSL_CERT_FILE SSL_CERT_DIR CURL_CA_BUNDLE JAVA_TOOL_OPTIONS; {script}"
    ))
}

#[test]
fn curl_trusts_the_authority() {
    let rig = CaRig::new(&[]);
    let port = server::start(&rig.host, &rig.ca);
    for url in [
        format!("https://localhost:{port}/"),
        format!("https://127.0.0.1:{port}/"),
        format!("--resolve www.example.com:{port}:127.0.0.1 https://www.example.com:{port}/"),
        format!("--tls-max 1.2 https://localhost:{port}/"),
    ] {
        assert_trusts_only_with_our_variables(&rig, &format!("curl -sS {url}"));
    }
}

#[test]
fn openssl_in_strict_mode_trusts_the_authority() {
    let rig = CaRig::new(&[]);
    let port = server::start(&rig.host, &rig.ca);
    let request = "printf 'GET / HTTP/1.1\\r\\n\\r\\n' | openssl s_client -quiet -ign_eof -x509_strict \
               -verify_return_error -verify_hostname localhost -servername localhost";
    assert_trusts_only_with_our_variables(&rig, &format!("{request} -connect 127.0.0.1:{port}"));
}

/// The client verifies the certificate as usual, but accepts RSA signatures only, so an ECDSA signature in the handshake
/// fails.
#[test]
fn client_that_requires_rsa_is_served() {
    let rig = CaRig::new(&[]);
    let port = server::start(&rig.host, &rig.ca);
    for version in ["-tls1_2", "-tls1_3"] {
        let printed = rig.shell_succeeds(&format!(
            "eval \"$($PEERNAME ca env --ca $CA)\"; echo | openssl s_client {version} -verify_return_error \
             -servername localhost -connect 127.0.0.1:{port} -sigalgs RSA-PSS+SHA256"
        ));
        assert_contains(&printed, &["Peer signature type: RSA-PSS"]);
        assert_contains(&printed, &["Verify return code: 0"]);
    }
}

#[test]
fn python_in_strict_mode_trusts_the_authority() {
    let rig = CaRig::new(&[]);
    let port = server::start(&rig.host, &rig.ca);
    let program = "import ssl, sys, urllib.request\n\
                   context = ssl.create_default_context()\n\
                   context.verify_flags |= ssl.VERIFY_X509_STRICT\n\
                   print(urllib.request.urlopen(sys.argv[1], context=context).read().decode())\n";
    rig.scratch.write("client.py", program);
    for name in ["localhost", "127.0.0.1"] {
        let client = format!("/usr/bin/python3 $DIR/client.py https://{name}:{port}/");
        assert_trusts_only_with_our_variables(&rig, &client);
    }
}

#[test]
fn node_trusts_the_authority() {
    let rig = CaRig::new(&[]);
    let port = server::start(&rig.host, &rig.ca);
    let program = "require('https').get(process.argv[2], answer => answer.pipe(process.stdout))";
    rig.scratch.write("client.js", program);
    for name in ["localhost", "127.0.0.1"] {
        let client =
            format!("node --dns-result-order=ipv4first $DIR/client.js https://{name}:{port}/");
        assert_trusts_only_with_our_variables(&rig, &client);
    }
}

#[test]
fn go_trusts_the_authority() {
    let rig = CaRig::new(&[]);
    let port = server::start(&rig.host, &rig.ca);
    rig.scratch.write("client.go", include_str!("client.go"));
    rig.shell_succeeds("go build -o $DIR/client $DIR/client.go");
    for name in ["localhost", "127.0.0.1"] {
        assert_trusts_only_with_our_variables(&rig, &format!("$DIR/client https://{name}:{port}/"));
    }
}

#[test]
fn java_trusts_the_authority() {
    let rig = CaRig::new(&[]);
    let port = server::start(&rig.host, &rig.ca);
    compile_java(&rig);
    // Java sends no SNI for a host name without a dot.
    rig.scratch.write("hosts", "127.0.0.1 www.example.com\n");
    let java = "java -Djdk.net.hosts.file=$DIR/hosts -cp $DIR Client";
    for name in ["www.example.com", "127.0.0.1"] {
        assert_trusts_only_with_our_variables(&rig, &format!("{java} https://{name}:{port}/"));
    }
    // Java still trusts the host's roots: its trust store has as many certificates as the bundle of the roots and the
    // authority.
    rig.shell_succeeds("$PEERNAME ca env --ca $CA --into $DIR");
    let trusted = rig.shell_succeeds(
        "keytool -list -keystore $DIR/truststore.p12 -storepass '' 2>/dev/null | grep -c trustedCertEntry",
    );
    let bundled = rig.shell_succeeds("grep -c BEGIN $DIR/bundle.pem");
    assert_eq!(trusted, bundled);
}

/// Compiles `Client`, in `$DIR`.
fn compile_java(rig: &CaRig) {
    rig.scratch
        .write("Client.java", include_str!("Client.java"));
    rig.shell_succeeds("javac -d $DIR $DIR/Client.java");
}

/// Paths may have characters that a shell or Java interprets.
#[test]
fn ca_files_may_have_any_path() {
    let rig = CaRig::new(&[]);
    let port = server::start(&rig.host, &rig.ca);
    compile_java(&rig);
    let into = r#"INTO="$DIR/it's my \"own\" \$HOME; \\ place""#;
    let env = format!(r#"{into}; eval "$($PEERNAME ca env --ca $CA --into "$INTO")""#);
    let printed = rig.shell(&env);
    let printed = stderr_text(&printed);
    assert_contains(&printed, &["mkdir -p -m 755 "]);
    // The command that the message recommends.
    rig.shell_succeeds(&format!(r#"{into}; mkdir -p -m 755 "$INTO""#));
    for client in ["curl -sS", "java -cp $DIR Client"] {
        let served = run_client(&rig, &format!("{env}; {client} https://127.0.0.1:{port}/"));
        let printed = stdout_text(&served);
        assert!(printed.contains(server::BODY), "{client}: {served:?}");
    }
}

/// Clients have the root only; a server has to send the chain that leads to it.
#[test]
fn intermediate_authority_sends_its_chain() {
    let rig = CaRig::new(&[]);
    rig.shell_succeeds(
        "cd $DIR && P256='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes' &&
         printf 'basicConstraints=critical,CA:TRUE,pathlen:0\\nkeyUsage=critical,keyCertSign\\n\
         subjectKeyIdentifier=hash\\nauthorityKeyIdentifier=keyid\\n' >extensions &&
         openssl req -x509 $P256 -keyout root.key -out root.pem -days 9 -subj /O=Example/CN=root \
             -addext keyUsage=critical,keyCertSign &&
         openssl req $P256 -keyout between.key -out between.csr -subj /O=Example/CN=between &&
         openssl x509 -req -in between.csr -CA root.pem -CAkey root.key -days 9 -extfile extensions \
             -out between.pem &&
         cat between.key between.pem >$CA/authority.pem",
    );
    let port = server::start(&rig.host, &rig.ca);
    let printed = rig.shell_succeeds(&format!(
        "curl -sS --cacert $DIR/root.pem https://localhost:{port}/"
    ));
    assert_eq!(printed, server::BODY);
    assert!(
        rig.fails("rotate")
            .contains("get its successor where it came from")
    );
}

/// The second time, the shell's variables name the authority's bundle already.
#[test]
fn ca_env_may_be_evaluated_twice() {
    let rig = CaRig::new(&[]);
    let env = "eval \"$($PEERNAME ca env --ca $CA)\"";
    let print = "sort $CA/bundle.pem; echo $JAVA_TOOL_OPTIONS";
    let once = rig.shell_succeeds(&format!("set -eu; {env}; {print}"));
    let twice = rig.shell_succeeds(&format!("set -eu; {env}; {env}; {print}"));
    assert_eq!(once, twice);
    let options = rig.shell_succeeds(&format!(
        "JAVA_TOOL_OPTIONS=-Dof=mine; {env}; {env}; echo $JAVA_TOOL_OPTIONS"
    ));
    assert!(options.starts_with("-Dof=mine -D"), "{options}");
    assert_eq!(options.matches("trustStore=").count(), 1, "{options}");
    let own = rig.succeeds("export", &[]);
    assert!(once.len() > own.len(), "the host's roots are in it");
}
