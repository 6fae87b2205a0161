"""The fixed pools of words that the corpus is made of.

The pools are small on purpose: the tokenizer gives each word one token, and a model of a few million parameters meets
every word often enough to learn it.
"""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PEOPLE = _words(
    """
    Mira Tomas Ada Boris Clara David Elena Felix Greta Hugo Irene Jonas Karin Leo Maya Nils Olga Pavel Rosa Simon
    Tara Ugo Vera Walter Yara Zeno Anna Bruno Carla Dina Emil Fiona Georg Hanna Ivan Julia Kolya Lena Martin Nora
    Oscar Petra Rafael Sonia Theo Ursula Victor Wanda Xenia Yusuf Zora Amir Bella Cyril Doris Edgar
    """
)
PLACES = _words(
    """
    Vela Orsk Lindal Marren Tolby Kesh Avon Brill Corfe Dunmore Eskel Farrow Galway Harth Ister Jarrow Kelso Lorne
    Milden Norden Ostia Pern Quill Raven Selby Thorn Ulm Varna Weston Yarrow Zell Arden Bexley Calder Dover Elgin
    Fenton Gorse Hallow Inver
    """
)
THINGS = _words(
    """
    lamp book map key ring clock boat drum coat cup knife basket chair mirror bell rope box kite violin letter hat
    flag stone shell candle broom ladder bottle wheel shovel pen scarf bucket carpet hammer globe whistle camera
    saddle table
    """
)
GOODS = _words(
    """
    apples pears eggs nuts plums coins cards beads stamps books pencils shells buttons loaves carrots onions candles
    stones flowers tickets
    """
)
ANIMALS = _words("cats dogs goats hens sheep horses geese cows ducks rabbits")
JOBS = _words(
    """
    baker doctor teacher miner farmer sailor painter singer judge tailor weaver smith pilot nurse writer cook guard
    driver clerk gardener
    """
)
COLOURS = _words("red blue green white black yellow brown grey golden silver old new small large broken heavy")
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _words("January February March April May June July August September October November December")
SPOTS = _words(
    """
    market river harbour mill bridge forest tower garden station school church inn library square hill lake
    """
)
WEATHER = _words("rain snow wind fog sun frost thunder heat")
FEELINGS = _words("happy tired proud afraid curious calm angry lonely hopeful worried")
EVENTS = _words("fair concert race wedding flood fire contest meeting auction parade storm strike")
