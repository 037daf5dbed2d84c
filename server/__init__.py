"""The hub: serves environments over HTTP and WebSocket."""
