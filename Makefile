# Short names for scripts/, which need no make.
.PHONY: demo check test docs slow
demo check test docs:
	scripts/$@
slow:
	scripts/test -m slow
