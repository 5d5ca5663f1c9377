"""The code that protoc generates from csi.proto and registration.proto (deploy/csi/generate.sh)."""
