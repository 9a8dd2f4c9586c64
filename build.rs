//! Compiles the protos without a system `protoc`: messages and services for Rust, their JSON, and
//! one descriptor set with comments for reflection, which has `google.rpc` in it so that clients
//! like grpcurl can print the details of errors.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use prost::Message;

const ROOT: &str = "proto";

/// What is served; everything that these import comes along.
const FILES: [&str; 8] = [
    "countersign/v1/content.proto",
    "countersign/v1/event.proto",
    "countersign/v1/invocation.proto",
    "countersign/v1/agent.proto",
    "countersign/v1/approval.proto",
    "countersign/v1/session.proto",
    "google/rpc/error_details.proto",
    "google/rpc/status.proto",
];

/// Well-known types and what stands for them in Rust: our own, which have proto3 JSON, sorted keys
/// and exact integers.
const WELL_KNOWN: [(&str, &str); 6] = [
    (".google.protobuf.Struct", "crate::proto::wkt::Struct"),
    (".google.protobuf.Value", "crate::proto::wkt::Value"),
    (".google.protobuf.ListValue", "crate::proto::wkt::ListValue"),
    (".google.protobuf.Timestamp", "crate::proto::wkt::Timestamp"),
    (".google.protobuf.Duration", "crate::proto::wkt::Duration"),
    (".google.protobuf.Empty", "()"),
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={ROOT}");
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let mut compiler = protox::Compiler::new([ROOT])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(FILES.map(|file| Path::new(ROOT).join(file)))?;
    // As protox encodes it: decoding to prost's own types first would lose custom options.
    fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;

    // Code for Google's packages comes along and is left where it is: only ours is included.
    let files = compiler.file_descriptor_set();

    let mut messages = tonic_prost_build::configure().btree_map(".").compile_well_known_types(true);
    let mut json = pbjson_build::Builder::new();
    json.btree_map(["."]).register_descriptors(&files.encode_to_vec())?;
    for (proto, rust) in WELL_KNOWN {
        messages = messages.extern_path(proto, rust);
        json.extern_path(proto, rust);
    }
    messages.compile_fds(files)?;
    json.build(&[".countersign.v1"])?;
    Ok(())
}
