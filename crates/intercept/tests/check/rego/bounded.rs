//! Calls of built-in functions with arguments that a client chooses.

use serde_json::json;

use super::answer_of;
use crate::ext_authz::denial;
use crate::rig::{CheckInput, client};

/// A call of a built-in function can't be stopped: what a request makes of it is bounded instead. In OPA, too, such a request gets no
/// answer, for want of memory.
#[tokio::test]
async fn builtin_function_with_an_endless_result_fails_the_check() {
    let policy = r#"package egress
arg := json.unmarshal(input.attributes.request.http.body)
f := arg[0]
x := arg[1]
verdict := count(numbers.range(x[0], x[1])) > 0 if f == "range"
verdict := count(numbers.range_step(x[0], x[1], x[2])) > 0 if f == "step"
verdict := count(net.cidr_expand(x[0])) > 0 if f == "cidr"
verdict := bits.lsh(x[0], x[1]) > 0 if f == "lsh"
verdict := units.parse(x[0]) > 0 if f == "units"
verdict := units.parse_bytes(x[0]) > 0 if f == "bytes"
verdict := sprintf(x[0], x[1]) != "" if f == "sprintf"
verdict := concat(x[0], x[1]) != "" if f == "concat"
verdict := replace(x[0], x[1], x[2]) != "" if f == "replace"
verdict := strings.replace_n(x[0], x[1]) != "" if f == "replace_n"
verdict := regex.replace(x[0], x[1], x[2]) != "" if f == "regex"
verdict := json.marshal_with_options(x[0], x[1]) != "" if f == "marshal"
verdict := glob.match(x[0], x[1], x[2]) if f == "glob"
verdict := count(json.unmarshal(x[0])) > 0 if f == "unmarshal"
verdict := json.is_valid(x[0]) if f == "valid"
verdict := to_number(x[0]) > 0 if f == "number"
verdict := strings.any_prefix_match(x[0], x[1]) if f == "prefix"
verdict := strings.any_suffix_match(x[0], x[1]) if f == "suffix"
"#;
    let file = std::env::temp_dir().join(format!("peername-bounded-{}.rego", std::process::id()));
    std::fs::write(&file, policy).expect("write");
    let client = client(&format!("rego:{}#egress/verdict", file.display()));
    let long = "a".repeat(30_000);
    // The engine would read it as a number of two billion digits.
    let number = r#"[{"\u0024serde_json::private::Number":"1e2147483647"}]"#;
    for (function, small, large, undefined) in [
        (
            "range",
            json!([1, 3000]),
            json!([1, 4_000_000_000_000_i64]),
            json!(["1", 2]),
        ),
        (
            "range",
            json!([-2, -5]),
            json!([i64::MIN, i64::MAX]),
            json!([0.5, 2]),
        ),
        (
            "step",
            json!([1, 3000, 7]),
            json!([1, 4_000_000_000_000_i64, 2]),
            json!([1, 2, 0]),
        ),
        (
            "cidr",
            json!(["192.0.2.0/24"]),
            json!(["10.0.0.0/8"]),
            json!(["192.0.2.0/33"]),
        ),
        (
            "cidr",
            json!(["2001:db8::/120"]),
            json!(["::/0"]),
            json!(["2001:db8::"]),
        ),
        ("unmarshal", json!(["[1]"]), json!([number]), json!(["{"])),
        ("valid", json!(["[1]"]), json!([number]), json!(["{"])),
        ("number", json!(["12"]), json!([number]), json!(["x"])),
        (
            "lsh",
            json!([1, 70]),
            json!([1, 4_000_000_000_u64]),
            json!([1, -1]),
        ),
        (
            "units",
            json!(["1.5e3Ki"]),
            json!(["1e999_999_999"]),
            json!(["x"]),
        ),
        (
            "bytes",
            json!(["10MB"]),
            json!(["1E2000000000K"]),
            json!([1]),
        ),
        (
            "sprintf",
            json!(["%%99999 %05d %.2f %s", [1, 2.5, "x"]]),
            json!(["%999999999d", [1]]),
            json!(["%d", []]),
        ),
        (
            "sprintf",
            json!(["%10q", ["x"]]),
            json!(["%\u{663}d", [1]]),
            json!([1, [1]]),
        ),
        (
            "sprintf",
            json!(["%3d", [1]]),
            json!(["%.99999f", [1.5]]),
            json!(["%5", [1]]),
        ),
        (
            "concat",
            json!([", ", ["a", "b"]]),
            json!([long, long.split("").collect::<Vec<_>>()]),
            json!([1, []]),
        ),
        (
            "replace",
            json!(["a-b", "-", "_"]),
            json!([long, "a", long]),
            json!([1, "", ""]),
        ),
        (
            "replace_n",
            json!([{"a": "b"}, "abc"]),
            json!([{"a": long, "b": ""}, long]),
            json!([{"a": 1}, "a"]),
        ),
        (
            "regex",
            json!(["abc", "b+", "[$0]"]),
            json!([long, "a*", "$0".repeat(9000)]),
            json!([1, "", ""]),
        ),
        (
            "marshal",
            json!([{"a": [1]}, {"indent": "  ", "pretty": true}]),
            json!([vec![json!({"a": [1]}); 5000], {"indent": long, "pretty": true}]),
            json!([1, {"indent": 1}]),
        ),
        (
            "glob",
            json!(["a.*", null, "a.b"]),
            json!(["a*".repeat(20_000), ["."], long]),
            json!([1, [], "a"]),
        ),
        (
            "prefix",
            json!([["b", "ab"], "a"]),
            json!([vec!["a"; 15_000], vec!["b"; 15_000]]),
            json!([1, "a"]),
        ),
        (
            "suffix",
            json!(["ba", ["x", "a"]]),
            json!([vec!["a"; 15_000], vec!["b"; 15_000]]),
            json!(["a", 1]),
        ),
    ] {
        let ask = async |arg: serde_json::Value| {
            let body = json!([function, arg]).to_string();
            let input = CheckInput {
                body: Some((body.into(), false)),
                ..CheckInput::default()
            };
            input.of(&client).await
        };
        assert!(ask(small).await.decision.allows(), "{function}");
        let verdict = ask(large).await;
        assert_eq!(
            answer_of(&verdict),
            Err("check_status"),
            "{function}: {verdict:?}"
        );
        assert_eq!(
            denial(&ask(undefined).await).status.as_u16(),
            403,
            "{function}"
        );
    }
    std::fs::remove_file(&file).expect("remove the file");
}
