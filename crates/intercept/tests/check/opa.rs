//! Checks by the real OPA.

use http::{HeaderMap, HeaderValue};
use peername_intercept::authz::{DecidedBy, Decision};
use serde_json::json;

use crate::ext_authz::denial;
use crate::rig::{CheckInput, ask, client, failure};
use crate::service::Opa;

fn url(opa: &Opa, rule: &str) -> String {
    format!("opa+http://{}/v1/data/{rule}", opa.address)
}

#[tokio::test]
async fn policy_decides_by_method_host_and_path() {
    let opa = Opa::start(
        "package egress\n\
         http := input.attributes.request.http\n\
         default allow := false\n\
         allow if { http.method == \"GET\"; http.host == \"origin.test\"; startswith(http.path, \"/a\") }\n",
    );
    let client = client(&url(&opa, "egress/allow"));
    let get = CheckInput::default().header("cookie", b"secret");
    let post = CheckInput::with(|input| input.method = http::Method::POST);
    let elsewhere = CheckInput::with(|input| input.host = "other.test");
    assert!(get.ask(&client).await.decision.allows());
    let input = opa.wait_decision();
    assert_eq!(
        input["attributes"]["source"]["address"]["socketAddress"]["address"],
        "192.0.2.7"
    );
    assert_eq!(input["attributes"]["contextExtensions"]["mode"], "request");
    assert_eq!(
        input["attributes"]["request"]["http"]["headers"][":path"],
        "/a?b=c"
    );
    assert!(!input.to_string().contains("secret"));
    for input in [post, elsewhere] {
        let verdict = input.ask(&client).await;
        assert!(matches!(verdict.decided_by, DecidedBy::Service));
        assert_eq!(denial(&verdict).status.as_u16(), 403);
    }
}

#[tokio::test]
async fn policy_sees_the_prefix_of_a_body() {
    let opa = Opa::start(
        "package egress\n\
         allow if { not contains(input.attributes.request.http.body, \"secret\"); input.truncated_body }\n",
    );
    let client = client(&url(&opa, "egress/allow"));
    for (body, allows) in [(&b"\xffharmless"[..], true), (b"\xffsecret", false)] {
        let input = CheckInput::with(|input| input.body = Some((body.to_vec().into(), true)));
        assert_eq!(input.ask(&client).await.decision.allows(), allows);
    }
}

/// The fields that OPA's Envoy plugin reads.
#[tokio::test]
async fn result_may_be_an_object() {
    let opa = Opa::start(
        "package egress\n\
         verdict := {\"allowed\": true, \"headers\": {\"x-by\": \"opa\"}, \"request_headers_to_remove\": [\"x-gone\"],\n\
           \"response_headers_to_add\": {\"x-seen\": \"1\"}} if input.attributes.request.http.method == \"GET\"\n\
         else := {\"allowed\": false, \"http_status\": 451, \"body\": \"no\", \"headers\": {\"x-by\": \"opa\"},\n\
           \"reason\": \"by law\"}\n",
    );
    let client = client(&url(&opa, "egress/verdict"));
    let verdict = ask(&client).await;
    let Decision::Allow(changes) = &verdict.decision else {
        panic!("{verdict:?}");
    };
    let mut request = HeaderMap::new();
    request.insert("x-gone", HeaderValue::from_static(""));
    changes.apply_to_request(&mut request);
    assert_eq!(
        (request.len(), &request["x-by"]),
        (1, &HeaderValue::from_static("opa"))
    );
    let input = CheckInput::with(|input| input.method = http::Method::POST);
    let verdict = input.ask(&client).await;
    let denial = denial(&verdict);
    assert_eq!(
        (denial.status.as_u16(), &denial.body[..], &*denial.reason),
        (451, &b"no"[..], "by law")
    );
    assert_eq!(denial.headers["x-by"], "opa");
}

/// Headers in each shape that OPA's Envoy plugin accepts.
#[tokio::test]
async fn headers_of_a_result_may_have_several_values() {
    let opa = Opa::start(
        "package egress\n\
         shapes := {\n\
           \"/object\": {\"x-by\": [\"a\", \"b\"], \"x-one\": \"1\"},\n\
           \"/list\": [{\"x-by\": \"a\"}, {\"X-By\": [\"b\"], \"x-one\": \"1\"}],\n\
         }\n\
         headers := shapes[input.attributes.request.http.path]\n\
         verdict := {\"allowed\": input.attributes.request.http.method == \"GET\", \"headers\": headers,\n\
           \"response_headers_to_add\": headers, \"dynamic_metadata\": {\"cache_control\": \"no-store\", \"n\": [1]}}\n",
    );
    let client = client(&url(&opa, "egress/verdict"));
    let assert_complete = |headers: &HeaderMap| {
        let values: Vec<_> = headers.get_all("x-by").iter().collect();
        assert_eq!(values, ["a", "b"], "{headers:?}");
        assert_eq!(headers["x-one"], "1");
    };
    for path in ["/object", "/list"] {
        let input = |method| CheckInput {
            path,
            method,
            ..CheckInput::default()
        };
        let verdict = input(http::Method::GET).ask(&client).await;
        let Decision::Allow(changes) = &verdict.decision else {
            panic!("{path}: {verdict:?}");
        };
        let mut headers = HeaderMap::new();
        headers.insert("x-by", HeaderValue::from_static("client"));
        changes.apply_to_request(&mut headers);
        assert_complete(&headers);
        let mut headers = HeaderMap::new();
        changes.apply_to_response(&mut headers);
        assert_complete(&headers);
        let verdict = input(http::Method::POST).ask(&client).await;
        assert_complete(&denial(&verdict).headers);
    }
}

/// The proxy can't change a query, so the request that would be sent is not the one that was allowed.
#[tokio::test]
async fn allow_for_a_changed_query_is_malformed() {
    let opa = Opa::start(
        "package egress\n\
         set := {\"allowed\": true, \"query_parameters_to_set\": {\"b\": [\"d\"]}}\n\
         removed := {\"allowed\": true, \"query_parameters_to_remove\": [\"b\"]}\n\
         neither := {\"allowed\": true, \"query_parameters_to_set\": {}, \"query_parameters_to_remove\": []}\n\
         both := {\"allowed\": true, \"allow\": true}\n\
         statuses := {\"allowed\": false, \"status\": 404, \"http_status\": 403}\n",
    );
    let ask_for = async |rule: &str| ask(&client(&url(&opa, &format!("egress/{rule}")))).await;
    assert!(ask_for("neither").await.decision.allows());
    for rule in ["set", "removed", "both", "statuses"] {
        let verdict = ask_for(rule).await;
        assert_eq!(failure(&verdict), Some("check_malformed"), "{rule}");
    }
}

#[tokio::test]
async fn only_an_explicit_allow_allows() {
    let opa = Opa::start(
        "package egress\n\
         yes := true\n\
         package_like := {\"allow\": true, \"unknown\": [1]}\n\
         text := \"true\"\n\
         one := 1\n\
         list := [true]\n\
         object := {\"allow\": \"true\"}\n\
         empty := {}\n\
         odd := {\"allow\": true, \"headers\": 5}\n\
         no := false\n\
         undefined if false\n\
         conflict := x if { some x in [true, false] }\n",
    );
    let outcome = async |rule: &str| {
        let verdict = ask(&client(&url(&opa, &format!("egress/{rule}")))).await;
        (
            verdict.decision.allows(),
            matches!(verdict.decided_by, DecidedBy::Service),
        )
    };
    for rule in ["yes", "package_like"] {
        assert_eq!(outcome(rule).await, (true, true), "{rule}");
    }
    for rule in [
        "text",
        "one",
        "list",
        "object",
        "empty",
        "odd",
        "no",
        "undefined",
        "nowhere",
    ] {
        assert_eq!(outcome(rule).await, (false, true), "{rule}");
    }
    // OPA answers 500 for a policy with conflicting results.
    assert_eq!(outcome("conflict").await, (false, false));
    assert_eq!(
        opa.wait_decision()["attributes"]["tlsSession"],
        json!({ "sni": "origin.test" })
    );
}
