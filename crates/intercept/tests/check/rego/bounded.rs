//! Calls of built-in functions with arguments that a client chooses.

use serde_json::json;
use tempfile::NamedTempFile;

use super::decision;
use crate::ext_authz::denial;
use crate::rig::{CheckInput, client};

/// A call of a built-in function can't be stopped, so its result is bounded beforehand. OPA does not answer such a request
/// either: it runs out of memory.
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
    let file = NamedTempFile::with_suffix(".rego").expect("a file");
    std::fs::write(&file, policy).expect("write");
    let client = client(&format!("rego:{}#egress/verdict", file.path().display()));
    let long = "a".repeat(30_000);
    // The engine would read it as a number of two billion digits.
    let number = r#"[{"\u0024serde_json::private::Number":"1e2147483647"}]"#;
    let cases = [
        json!({"f": "range", "short": [1, 3000], "endless": [1, 4_000_000_000_000_i64], "undefined": ["1", 2]}),
        json!({"f": "range", "short": [-2, -5], "endless": [i64::MIN, i64::MAX], "undefined": [0.5, 2]}),
        json!({"f": "step", "short": [1, 3000, 7], "endless": [1, 4_000_000_000_000_i64, 2],
            "undefined": [1, 2, 0]}),
        json!({"f": "cidr", "short": ["192.0.2.0/24"], "endless": ["10.0.0.0/8"],
            "undefined": ["192.0.2.0/33"]}),
        json!({"f": "cidr", "short": ["2001:db8::/120"], "endless": ["::/0"], "undefined": ["2001:db8::"]}),
        json!({"f": "unmarshal", "short": ["[1]"], "endless": [number], "undefined": ["{"]}),
        json!({"f": "valid", "short": ["[1]"], "endless": [number], "undefined": ["{"]}),
        json!({"f": "number", "short": ["12"], "endless": [number], "undefined": ["x"]}),
        json!({"f": "lsh", "short": [1, 70], "endless": [1, 4_000_000_000_u64], "undefined": [1, -1]}),
        json!({"f": "units", "short": ["1.5e3Ki"], "endless": ["1e999_999_999"], "undefined": ["x"]}),
        json!({"f": "bytes", "short": ["10MB"], "endless": ["1E2000000000K"], "undefined": [1]}),
        json!({"f": "sprintf", "short": ["%%99999 %05d %.2f %s", [1, 2.5, "x"]],
            "endless": ["%999999999d", [1]], "undefined": ["%d", []]}),
        json!({"f": "sprintf", "short": ["%10q", ["x"]], "endless": ["%\u{663}d", [1]], "undefined": [1, [1]]}),
        json!({"f": "sprintf", "short": ["%3d", [1]], "endless": ["%.99999f", [1.5]], "undefined": ["%5", [1]]}),
        json!({"f": "concat", "short": [", ", ["a", "b"]],
            "endless": [long, long.split("").collect::<Vec<_>>()], "undefined": [1, []]}),
        json!({"f": "replace", "short": ["a-b", "-", "_"], "endless": [long, "a", long],
            "undefined": [1, "", ""]}),
        json!({"f": "replace_n", "short": [{"a": "b"}, "abc"], "endless": [{"a": long, "b": ""}, long],
            "undefined": [{"a": 1}, "a"]}),
        json!({"f": "regex", "short": ["abc", "b+", "[$0]"], "endless": [long, "a*", "$0".repeat(9000)],
            "undefined": [1, "", ""]}),
        json!({"f": "marshal", "short": [{"a": [1]}, {"indent": "  ", "pretty": true}],
            "endless": [vec![json!({"a": [1]}); 5000], {"indent": long, "pretty": true}],
            "undefined": [1, {"indent": 1}]}),
        json!({"f": "glob", "short": ["a.*", null, "a.b"], "endless": ["a*".repeat(20_000), ["."], long],
            "undefined": [1, [], "a"]}),
        json!({"f": "prefix", "short": [["b", "ab"], "a"],
            "endless": [vec!["a"; 15_000], vec!["b"; 15_000]], "undefined": [1, "a"]}),
        json!({"f": "suffix", "short": ["ba", ["x", "a"]],
            "endless": [vec!["a"; 15_000], vec!["b"; 15_000]], "undefined": ["a", 1]}),
    ];
    for case in &cases {
        let function = &case["f"];
        let ask = async |arg: &str| {
            let body = json!([function, case[arg]]).to_string();
            let input = CheckInput::with(|input| input.body = Some((body.into(), false)));
            input.ask(&client).await
        };
        assert!(ask("short").await.decision.allows(), "{function}");
        let verdict = ask("endless").await;
        assert_eq!(
            decision(&verdict),
            Err("check_status"),
            "{function}: {verdict:?}"
        );
        let undefined = ask("undefined").await;
        assert_eq!(denial(&undefined).status.as_u16(), 403, "{function}");
    }
}
