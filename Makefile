# Short names for scripts/, which need no make.
.PHONY: demo check test slow
demo check test:
	scripts/$@
slow:
	scripts/test -m slow
