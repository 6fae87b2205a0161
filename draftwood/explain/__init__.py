"""How an answer came about: every draft of every round, and what became of it (`Engine.explain`)."""
