"""Prompts that any model can continue in several ways; half of them repeat themselves, so that lookup drafts."""

PROMPTS = (
    "The weather in the mountains changes quickly, so",
    "My favourite thing about the city is",
    "The cat sat on the mat. The cat sat on the chair. The cat sat on the",
    "1. Wash the apples. 2. Cut the apples. 3. Cook the apples. 4.",
    "The old man opened the door and saw",
    "She likes red and blue. He likes blue and green. They like green and",
    "In the year 1900, people believed that",
    "One day the fox met the crow. The next day the fox met the bear. Then the fox met the",
    "There are many reasons why people travel:",
    "x = 1\ny = 2\nz = x + y\nprint(x)\nprint(y)\nprint(",
    "The scientist looked at the results and said",
    "Monday: rice and beans. Tuesday: rice and fish. Wednesday: rice and",
)
