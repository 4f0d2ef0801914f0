//! Bounds for the built-in functions of Rego whose cost is not proportional to the size of their arguments.
//!
//! The deadline ends an evaluation between two steps, and a call of a built-in function is one step. An argument that a client
//! chooses (a number, a width, the length of a prefix) could make the call allocate without end, and a failed allocation aborts
//! the process, as a panic does. So the cost of a call is computed before it is made, and a call beyond the limit is an error
//! of the policy.

use anyhow::{Result, bail};
use regorus::{Engine, Value};

/// A bounded function.
struct Bounded {
    name: &'static str,
    arity: u8,
    /// Estimates the result's size in bytes, or is [`TOO_COSTLY`] or 0; `None` if the call is undefined for such arguments.
    cost: CostFn,
}

type CostFn = fn(&[Value]) -> Option<usize>;

/// Replaces the engine's own functions by bounded ones. Fails if the engine lacks one of them.
pub(super) fn replace_builtins(engine: &mut Engine) -> Result<()> {
    // The only way to call an engine's own functions is from a policy: this engine has one with a rule for each function.
    let mut caller = Engine::new();
    caller.set_strict_builtin_errors(false);
    let rules = BOUNDED.iter().map(|function| {
        let Bounded { name, arity, .. } = function;
        let args: Vec<_> = (0..*arity).map(|index| format!("input[{index}]")).collect();
        format!("{} := {name}({})\n", rule_name(name), args.join(", "))
    });
    let module = format!("package bounded\n{}", rules.collect::<String>());
    caller.add_policy("bounded.rego".to_owned(), module)?;
    // Compiles the rules once, for all clones.
    caller.eval_query("true".to_owned(), false)?;
    for function in &BOUNDED {
        let Bounded { name, arity, cost } = *function;
        let rule = format!("data.bounded.{}", rule_name(name));
        let caller = caller.clone();
        let bounded = move |args: Vec<Value>| match cost(&args) {
            None => Ok(Value::Undefined),
            Some(..=MAX_COST) => {
                let mut caller = caller.clone();
                caller.set_input(args.into());
                caller.eval_rule(rule.clone())
            }
            Some(_) => bail!(
                "{name} would take too long for these arguments, or its result would be too long"
            ),
        };
        engine.add_extension(name.to_owned(), arity, Box::new(bounded))?;
    }
    Ok(())
}

fn rule_name(function: &str) -> String {
    function.replace('.', "_")
}

const BOUNDED: [Bounded; 18] = [
    bounded("json.unmarshal", 1, json_cost),
    bounded("json.is_valid", 1, json_cost),
    // Strings are parsed as JSON; other arguments cost nothing.
    bounded("to_number", 1, |args| Some(json_cost(args).unwrap_or(0))),
    bounded("numbers.range", 2, |args| range_cost(args, 1)),
    bounded("numbers.range_step", 3, |args| {
        range_cost(args, args.get(2)?.as_i64().ok()?)
    }),
    bounded("net.cidr_expand", 1, cidr_cost),
    bounded("bits.lsh", 2, |args| {
        let shift = args.get(1)?.as_u64().ok()?;
        Some(free_up_to(MAX_DIGITS, shift))
    }),
    bounded("units.parse", 1, exponent_cost),
    bounded("units.parse_bytes", 1, exponent_cost),
    bounded("sprintf", 2, format_cost),
    bounded("concat", 2, |args| {
        let parts = match args.get(1)? {
            Value::Array(parts) => parts.len(),
            Value::Set(parts) => parts.len(),
            _ => return None,
        };
        Some(parts.saturating_mul(text(args, 0)?.len()))
    }),
    bounded("replace", 3, |args| {
        let matches = text(args, 0)?.matches(text(args, 1)?).count();
        Some(matches.saturating_mul(text(args, 2)?.len()))
    }),
    bounded("strings.replace_n", 2, replacements_cost),
    bounded("regex.replace", 3, |args| {
        let (replaced, by) = (text(args, 0)?.len(), text(args, 2)?);
        // At most one match at each byte, and `$` inserts a part of it.
        let literal = by.len().saturating_mul(replaced + 1);
        let inserted = by.matches('$').count().saturating_mul(replaced);
        Some(literal.saturating_add(inserted))
    }),
    bounded("json.marshal_with_options", 2, indented_cost),
    bounded("glob.match", 3, |args| {
        Some(free_up_to(MAX_PATTERN, text(args, 0)?.len() as u64))
    }),
    bounded("strings.any_prefix_match", 2, comparisons_cost),
    bounded("strings.any_suffix_match", 2, comparisons_cost),
];

const fn bounded(name: &'static str, arity: u8, cost: CostFn) -> Bounded {
    Bounded { name, arity, cost }
}

fn text(args: &[Value], index: usize) -> Option<&str> {
    Some(args.get(index)?.as_string().ok()?)
}

/// The cost of a call that allocates little, but takes too long if `value` is above `max`.
fn free_up_to(max: u64, value: u64) -> usize {
    if value > max { TOO_COSTLY } else { 0 }
}

fn range_cost(args: &[Value], step: i64) -> Option<usize> {
    let [from, to] = [args.first()?.as_i64().ok()?, args.get(1)?.as_i64().ok()?];
    let elements = from.abs_diff(to) / u64::try_from(step).ok().filter(|step| *step > 0)?;
    Some(elements_cost(elements.saturating_add(1)))
}

fn cidr_cost(args: &[Value]) -> Option<usize> {
    let (address, len) = text(args, 0)?.split_once('/')?;
    let bits: u32 = if address.contains(':') { 128 } else { 32 };
    let host_bits = bits.checked_sub(len.parse().ok()?)?;
    let addresses = 1_u64.checked_shl(host_bits).unwrap_or(u64::MAX);
    Some(elements_cost(addresses))
}

fn elements_cost(elements: u64) -> usize {
    usize::try_from(elements).map_or(TOO_COSTLY, |count| count.saturating_mul(ELEMENT))
}

/// The cost of a number with an exponent: the engine computes the number digit by digit.
fn exponent_cost(args: &[Value]) -> Option<usize> {
    // The library ignores underscores.
    let number = text(args, 0)?.replace('_', "");
    let largest = number
        .split(['e', 'E'])
        .skip(1)
        .map(|text| leading_number(text.trim_start_matches(['+', '-'])))
        .max();
    Some(free_up_to(MAX_DIGITS, largest.unwrap_or_default()))
}

/// The cost of a JSON text: none, unless it has an object with the key that serde_json uses for numbers. The engine reads such
/// an object as a number, of any exponent.
fn json_cost(args: &[Value]) -> Option<usize> {
    let json = serde_json::from_str(text(args, 0)?);
    Some(match json.is_ok_and(|json| has_number_object(&json)) {
        true => TOO_COSTLY,
        false => 0,
    })
}

fn has_number_object(json: &serde_json::Value) -> bool {
    match json {
        serde_json::Value::Object(members) => {
            members.contains_key("$serde_json::private::Number")
                || members.values().any(has_number_object)
        }
        serde_json::Value::Array(items) => items.iter().any(has_number_object),
        _ => false,
    }
}

/// The cost of the widths and precisions in a format.
fn format_cost(args: &[Value]) -> Option<usize> {
    let format = text(args, 0)?.replace("%%", "");
    let widths = format.split('%').skip(1).map(|directive| {
        let directive = directive.strip_prefix('.').unwrap_or(directive);
        let after_digits = directive.trim_start_matches(|c: char| c.is_ascii_digit());
        // The library panics at digits that are not ASCII.
        match after_digits.starts_with(char::is_numeric) {
            true => TOO_COSTLY,
            false => free_up_to(MAX_DIGITS, leading_number(directive)),
        }
    });
    Some(widths.fold(0, usize::saturating_add))
}

/// The length of the text after all replacements, which are made one after another.
fn replacements_cost(args: &[Value]) -> Option<usize> {
    let (pairs, mut replaced) = (args.first()?.as_object().ok()?, text(args, 1)?.to_owned());
    for (old, new) in pairs.iter_sorted() {
        let (old, new) = (old.as_string().ok()?, new.as_string().ok()?);
        let matches = replaced.matches(&**old).count();
        if matches.saturating_mul(new.len()) > MAX_COST {
            return Some(TOO_COSTLY);
        }
        replaced = replaced.replace(&**old, new);
    }
    Some(replaced.len())
}

/// The cost of the indentation of all lines of a JSON text.
fn indented_cost(args: &[Value]) -> Option<usize> {
    let json = args.first()?.to_json_str().ok()?;
    let lines = json.matches([',', '{', '[']).count() * 2 + 1;
    let depth = json.chars().scan(0_usize, |depth, c| {
        match c {
            '{' | '[' => *depth += 1,
            '}' | ']' => *depth = depth.saturating_sub(1),
            _ => {}
        }
        Some(*depth)
    });
    let options = args.get(1)?.as_object().ok()?;
    let indent = options
        .iter_sorted()
        .filter_map(|(_, value)| Some(value.as_string().ok()?.len()))
        .max()
        .unwrap_or(1);
    Some(lines.saturating_mul(indent.saturating_mul(depth.max()? + 1)))
}

/// The cost of comparing each string of the first argument with each of the second.
fn comparisons_cost(args: &[Value]) -> Option<usize> {
    let comparisons = text_count(args.first()?)?.saturating_mul(text_count(args.get(1)?)?);
    Some(free_up_to(MAX_COMPARISONS, comparisons))
}

/// The number of strings in an argument that is a string, or an array or set of strings.
fn text_count(value: &Value) -> Option<u64> {
    match value {
        Value::String(_) => Some(1),
        Value::Array(texts) => Some(texts.len() as u64),
        Value::Set(texts) => Some(texts.len() as u64),
        _ => None,
    }
}

/// The number that a text begins with; 0 without one.
fn leading_number(text: &str) -> u64 {
    text.bytes()
        .take_while(u8::is_ascii_digit)
        .fold(0_u64, |number, digit| {
            number
                .saturating_mul(10)
                .saturating_add((digit - b'0').into())
        })
}

/// The maximum size of a result in bytes: much more than a request has, and affordable with one evaluation per CPU.
const MAX_COST: usize = 16 << 20;
/// The cost of a call that is always refused.
const TOO_COSTLY: usize = usize::MAX;
/// The bytes of an element of an array or set, with its text: [`MAX_COST`] is about 100,000 elements.
const ELEMENT: usize = 160;
/// The maximum number of bytes of a glob pattern. The time to translate one grows with the square of its length.
const MAX_PATTERN: u64 = 4096;
/// The maximum number of comparisons of two strings: some tenths of a second.
const MAX_COMPARISONS: u64 = 10_000_000;
/// The maximum number of digits of a number, binary or decimal.
const MAX_DIGITS: u64 = 4096;
