"""The embedded inference engine: its model (pure) and its OpenAI-compatible server."""
