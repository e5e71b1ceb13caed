"""The answers of the server, as JSON: ids are texts, since they have up to 64 bits; durations are seconds."""
