"""The HTTP server: Postbus for programs in any language."""
