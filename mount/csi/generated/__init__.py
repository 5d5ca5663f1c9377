"""What protoc makes of csi.proto and registration.proto (deploy/csi/generate.sh)."""
