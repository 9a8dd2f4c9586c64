pub fn same(a: &serde_json::Value, b: &serde_json::Value) -> bool {
    a == b
}
pub fn digest(v: &serde_json::Value) -> Result<String, ()> {
    Ok(v.to_string())
}
pub fn exact_if_lossy(_v: &super::content::Object) -> String {
    String::new()
}
