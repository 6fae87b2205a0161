"""Many requests on one engine: asyncio, threads, one that is cancelled, and a prompt that was read before."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import draftwood

PROMPTS = ["Story: In Corfe there lived a sailor called", "Problem: Lena has 13 pears.", "Story: In Corfe there lived"]
GREEDY = {"temperature": 0}

engine = draftwood.load(max_running=16, max_queued=1000, kv_cache_bytes=1 << 28)  # the embedded pair


async def first_words(served: draftwood.AsyncEngine, prompt: str) -> str:
    """A stream that is left when there is enough: the request ends then."""
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

# Engine's own methods may be called from any threads, also at the same time. The texts are what they are alone.
with ThreadPoolExecutor() as threads:
    again = threads.map(lambda prompt: engine.generate(prompt, "speculative", GREEDY, max_new_tokens=40).text, PROMPTS)
    print("threads say the same:", list(again) == texts)

# What was read before is not read again: the second turn of a conversation costs its new tokens.
turn = f"{PROMPTS[1]}{texts[1]}\nProblem: Tom has 4 pears."
metrics = engine.generate(turn, "speculative", GREEDY, max_new_tokens=20).metrics
print("tokens of the prompt taken over:", metrics.reused_tokens, "of", len(engine.tokens(turn)))
engine.reset_prefix_cache()
