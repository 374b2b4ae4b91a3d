"""An embedded engine for durable Flows that speaks the Dex gRPC protocol."""
