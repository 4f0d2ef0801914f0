//! The number of fields in HTTP/2 header lists. A field that is in a table takes a byte on the wire, and 72 bytes in memory.

use crate::harness::lab::assert_contains;
use crate::harness::rig::intercept::InterceptRig;

/// Up to 128 streams of a connection hold their header lists until their requests end; the limit of fields bounds that memory.
#[test]
fn memory_for_http2_header_lists_is_bounded() {
    let rig = InterceptRig::new(&[]);
    for connections in ["1", "30"] {
        let pid = rig.proxy.pid().to_string();
        let printed = run_client(&rig, &["flood", connections, &pid]);
        let (sent, grown) = printed.split_once(' ').expect("two numbers");
        println!("{connections} connections: {sent} bytes sent, memory grows by {grown}");
        let [sent, grown] = [sent, grown].map(|number| number.parse::<usize>().expect("a number"));
        assert!(grown < 10 * sent.max(MEASURABLE), "{printed}");
    }
    assert_eq!(rig.curl_status(&["https://a.test/echo"]), 200);
    assert!(rig.origin_log().len() <= 1, "{:?}", rig.origin_log());
}

#[test]
fn http2_header_list_with_too_many_fields_is_refused() {
    let rig = InterceptRig::new(&[]);
    let ask = |mode, fields: usize| run_client(&rig, &[mode, &fields.to_string()]);
    assert_eq!(ask("list", 190), "404 200");
    // The next request on the connection is answered.
    assert_eq!(ask("list", 210), "431 200");
    let line = &rig.wait_audit_lines("/list", 2)[1];
    assert_eq!(line["code"], "bad_request", "{line}");
    // Beyond all that a client could want, the connection is closed before the list is decoded.
    assert_eq!(ask("list", 600), "closed closed");
    assert_eq!(ask("trailers", 190), "200 200");
    assert_eq!(ask("trailers", 600), "closed closed");
    let refused = rig.proxy.wait_logged("512 fields");
    assert_contains(&refused, &["\"host\":\"a.test\""]);
}

fn run_client(rig: &InterceptRig, args: &[&str]) -> String {
    rig.scratch.write("frames.py", include_str!("frames.py"));
    let source = include_str!("field_count.py");
    rig.run_python_client(source, &[&["a.test:443"], args].concat())
}

/// In bytes: what a process allocates for its first requests hides any smaller growth.
const MEASURABLE: usize = 1 << 20;
