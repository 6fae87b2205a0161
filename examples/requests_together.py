"""Many requests on one engine: asyncio, threads, cancellation, and a reused prefix."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import draftwood

PROMPTS = ["Story: In Corfe there lived a sailor called", "Problem: Lena has 13 pears.", "Story: In Corfe there lived"]
GREEDY = {"temperature": 0}

engine = draftwood.load(max_running=16, max_queued=1000, kv_cache_bytes=1 << 28)  # the embedded pair


async def first_words(served: draftwood.AsyncEngine, prompt: str) -> str:
    """The first words of a stream; leaving the loop ends the request."""
    text = ""
    async for event in served.stream(prompt, method="mcsd", sampling=GREEDY, max_new_tokens=200):
        text += event.text
        if len(text) > 20:
            break
    return text


async def main() -> list[str]:
    async with draftwood.AsyncEngine(engine) as served:
        whole = (served.generate(prompt, "speculative", GREEDY, max_new_tokens=40) for prompt in PROMPTS)
        *results, words = await asyncio.gather(*whole, first_words(served, PROMPTS[0]))
    for result in results:
        print("asyncio:", repr(result.text[:50]))
    print("left early:", repr(words))
    return [result.text for result in results]


texts = asyncio.run(main())

# Engine's methods may be called from several threads at once. Each text is what it would be alone.
with ThreadPoolExecutor() as threads:
    again = threads.map(lambda prompt: engine.generate(prompt, "speculative", GREEDY, max_new_tokens=40).text, PROMPTS)
    print("threads say the same:", list(again) == texts)

# Prefixes are reused: the second turn of a conversation computes only its new tokens.
turn = f"{PROMPTS[1]}{texts[1]}\nProblem: Tom has 4 pears."
metrics = engine.generate(turn, "speculative", GREEDY, max_new_tokens=20).metrics
print("tokens of the prompt taken over:", metrics.reused_tokens, "of", len(engine.tokens(turn)))
engine.reset_prefix_cache()
