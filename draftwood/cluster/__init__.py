"""More than one engine, on Ray (extra `scale`): batches and serving. Nothing below knows Ray."""
