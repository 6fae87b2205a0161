"""An OpenAI-compatible server on `AsyncEngine`; needs the extra `serve`."""
