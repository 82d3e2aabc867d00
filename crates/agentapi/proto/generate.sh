#!/bin/sh
# Writes src/generated from proto/. Needs protoc and `cargo install protoc-gen-buffa@0.9.2`; building Atoll needs neither.
set -eu
cd "$(dirname "$0")"
protoc --buffa_out=../src/generated \
  --buffa_opt=views=false,unknown_fields=false,json=true,register_types=false,unbox_oneof=true,file_per_package=true \
  process/process.proto filesystem/filesystem.proto atoll/agent/v1/agent.proto
