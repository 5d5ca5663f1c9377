"""The HTTP API of the Hugging Face Hub, for reading: clients with HF_ENDPOINT=http://NODE:7440/hf."""
