"""Regular expressions of ECMA-262, as JSON Schema has them: parsed, judged, and written in Rust's notation."""
