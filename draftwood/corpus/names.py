"""The fixed pools of words the world is made of.

The pools are small on purpose: the tokenizer gives each word one token, and a
model of a few million parameters meets every word often enough to learn it.
"""

from __future__ import annotations

PEOPLE: tuple[str, ...] = (
    "Mira", "Tomas", "Ada", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Hugo",
    "Irene", "Jonas", "Karin", "Leo", "Maya", "Nils", "Olga", "Pavel", "Rosa", "Simon",
    "Tara", "Ugo", "Vera", "Walter", "Yara", "Zeno", "Anna", "Bruno", "Carla", "Dina",
    "Emil", "Fiona", "Georg", "Hanna", "Ivan", "Julia", "Kolya", "Lena", "Martin", "Nora",
    "Oscar", "Petra", "Rafael", "Sonia", "Theo", "Ursula", "Victor", "Wanda", "Xenia", "Yusuf",
    "Zora", "Amir", "Bella", "Cyril", "Doris", "Edgar",
)  # fmt: skip

PLACES: tuple[str, ...] = (
    "Vela", "Orsk", "Lindal", "Marren", "Tolby", "Kesh", "Avon", "Brill", "Corfe", "Dunmore",
    "Eskel", "Farrow", "Galway", "Harth", "Ister", "Jarrow", "Kelso", "Lorne", "Milden", "Norden",
    "Ostia", "Pern", "Quill", "Raven", "Selby", "Thorn", "Ulm", "Varna", "Weston", "Yarrow",
    "Zell", "Arden", "Bexley", "Calder", "Dover", "Elgin", "Fenton", "Gorse", "Hallow", "Inver",
)  # fmt: skip

THINGS: tuple[str, ...] = (
    "lamp", "book", "map", "key", "ring", "clock", "boat", "drum", "coat", "cup",
    "knife", "basket", "chair", "mirror", "bell", "rope", "box", "kite", "violin", "letter",
    "hat", "flag", "stone", "shell", "candle", "broom", "ladder", "bottle", "wheel", "shovel",
    "pen", "scarf", "bucket", "carpet", "hammer", "globe", "whistle", "camera", "saddle", "table",
)  # fmt: skip

GOODS: tuple[str, ...] = (
    "apples", "pears", "eggs", "nuts", "plums", "coins", "cards", "beads", "stamps", "books",
    "pencils", "shells", "buttons", "loaves", "carrots", "onions", "candles", "stones", "flowers",
    "tickets",
)  # fmt: skip

ANIMALS: tuple[str, ...] = (
    "cats", "dogs", "goats", "hens", "sheep", "horses", "geese", "cows", "ducks", "rabbits",
)  # fmt: skip

JOBS: tuple[str, ...] = (
    "baker", "doctor", "teacher", "miner", "farmer", "sailor", "painter", "singer", "judge",
    "tailor", "weaver", "smith", "pilot", "nurse", "writer", "cook", "guard", "driver", "clerk",
    "gardener",
)  # fmt: skip

COLOURS: tuple[str, ...] = (
    "red", "blue", "green", "white", "black", "yellow", "brown", "grey", "golden", "silver",
    "old", "new", "small", "large", "broken", "heavy",
)  # fmt: skip

DAYS: tuple[str, ...] = (
    "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
)  # fmt: skip

MONTHS: tuple[str, ...] = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip

SPOTS: tuple[str, ...] = (
    "market", "river", "harbour", "mill", "bridge", "forest", "tower", "garden", "station",
    "school", "church", "inn", "library", "square", "hill", "lake",
)  # fmt: skip

WEATHER: tuple[str, ...] = (
    "rain", "snow", "wind", "fog", "sun", "frost", "thunder", "heat",
)  # fmt: skip

FEELINGS: tuple[str, ...] = (
    "happy", "tired", "proud", "afraid", "curious", "calm", "angry", "lonely", "hopeful",
    "worried",
)  # fmt: skip

EVENTS: tuple[str, ...] = (
    "fair", "concert", "race", "wedding", "flood", "fire", "contest", "meeting", "auction",
    "parade", "storm", "strike",
)  # fmt: skip
