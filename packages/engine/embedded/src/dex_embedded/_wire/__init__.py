"""The Dex gRPC protocol: the only code here that knows gRPC and its messages."""
