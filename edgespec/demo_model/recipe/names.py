"""Names of people, and things that can be counted."""

# ruff: noqa: E501, SIM905 (word tables, easier to read and to extend as text)

from __future__ import annotations

from edgespec.demo_model.recipe.draw import Draw, is_held_out

NAMES = tuple(
    "Ada Adam Aisha Akira Alan Alba Alex Alice Amara Amir Amy Ana Andre Anna Anton Arun Asha Astrid Ava Ben Bella Bo "
    "Bruno Carl Carla Cara Carmen Chen Chloe Clara Cora Dan Dana Daniel Dara David Dina Diego Dora Eda Edith Eli Elif "
    "Ella Elsa Emil Emma Enzo Eric Erin Esra Eva Ewa Farid Fatima Felix Fiona Flora Frank Freya Gina Goran Grace Greta "
    "Gus Hana Hans Hassan Heidi Helen Henry Hugo Ida Ines Ingrid Iris Isa Ivan Jack Jan Jana Jane Jin Joan Joe John "
    "Jonas Jose Josh Julia June Kai Kara Karim Kate Ken Kim Kira Klaus Lars Laura Lea Lena Leo Lily Lina Linus Lisa Liu "
    "Lola Lucas Lucy Luis Luna Maja Marco Maria Mark Marta Mary Max Maya Mei Mia Milo Mina Mira Mona Nadia Nora Nia "
    "Nick Nils Nina Noah Noor Olaf Olga Olive Omar Oscar Otto Owen Pablo Paul Paula Pedro Petra Pia Priya Rana Raul "
    "Ravi Rita Robin Roman Rosa Ruby Ruth Ryan Sam Sana Sara Sasha Selma Sina Simon Sofia Sven Tara Theo Tim Tina Tom "
    "Tomas Uma Vera Viktor Wanda Will Yara Yuki Yusuf Zara Zoe".split()
)
THINGS = tuple(
    "apples pears books coins stones shells cards eggs nuts plums stamps pens cups balls flowers keys cookies "
    "lemons beans ribbons buttons candles tickets marbles".split()
)
_ONSETS = "b br c d dr f g gr h j k kr l m n p r s st t tr v w z".split()
_VOWELS = "a e i o u ai ea ia io".split()
_ENDS = "n l r s m x th ra na lo ko mi".split()


def name(d: Draw) -> str:
    """A person's name. A third are made from syllables, so that the model copies names instead of knowing them."""

    def sample() -> str:
        if d.chance(0.65):
            return d.pick(NAMES)
        return (d.pick(_ONSETS) + d.pick(_VOWELS) + d.pick(_ENDS)).capitalize()

    return d.arguments(sample, "name")


SEEN_NAMES = tuple(n for n in NAMES if not is_held_out(f"name {n}"))
