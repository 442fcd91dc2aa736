"""Prompts of random common words: fresh for every request, and the same again from the same seed."""

from __future__ import annotations

from random import Random

# Law: each of these is one token of the model's vocabulary, with a space before it and without one,
# so a count of words is a count of tokens.
WORDS = """
    time year people way day man thing woman life child world school state family student group country
    problem hand part place case week company system program question work government number night point
    home water room mother area money story fact month lot right study book eye job word business issue side
    kind head house service friend father power hour game line end member law car city community name
    president team minute idea kid body information back parent face others level office door health person
    art war history party result change reason research girl moment air teacher force education foot boy age
    policy music market sense nation plan college interest death experience effect use class control field
    development role rate heart drug show leader light voice wife mind price report decision son view
    relationship town road arm difference value building action season tax director position player record
    paper space ground form event official matter center site project activity star table need court oil
    cost industry figure street image phone data picture practice piece land product doctor wall news test
    movie north love support technology step baby computer type attention film tree source hair look course
    summer south food color window rest energy blood bank west skin river fire stone bridge winter spring
    forest horse bird fish green blue white black brown small large long short early late young old great
    little high low strong simple clear open close deep warm cold dark bright quick slow happy quiet ready
    true whole main public common local recent single free real full certain possible good new best better
    able hard easy important different big next last same few most many such only very well then now here
    there often always never again still also almost enough rather together away ahead along around before
    after
""".split()  # noqa: SIM905  three hundred quotes hide the words


def words(random: Random, count: int) -> str:
    """`count` words, which are `count` tokens."""
    return " ".join(random.choices(WORDS, k=count))
