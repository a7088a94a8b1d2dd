"""The questions, and how answers are graded. Both were committed before any setting was tried: do not tune them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """A question as a user types it, and the accepted spellings of its answer."""

    text: str
    spellings: tuple[str, ...]

    def right(self, answer: str) -> bool:
        """Return whether the answer contains one of the spellings, as an exact, case-sensitive substring."""
        return any(spelling in answer for spelling in self.spellings)


QUESTIONS = (
    Question("What is the capital of France?", ("Paris",)),
    Question("What is the capital of Japan?", ("Tokyo",)),
    Question("What is the capital of Italy?", ("Rome",)),
    Question("Which city is the capital of Germany?", ("Berlin",)),
    Question("In which country is the Eiffel Tower?", ("France",)),
    Question("On which continent is Egypt?", ("Africa",)),
    Question("What language do people speak in Brazil?", ("Portuguese",)),
    Question("What is the largest ocean on Earth?", ("Pacific",)),
    Question("What is the largest planet in our solar system?", ("Jupiter",)),
    Question("Which planet is called the red planet?", ("Mars",)),
    Question("Who wrote Romeo and Juliet?", ("Shakespeare",)),
    Question("Who was the first president of the United States?", ("Washington",)),
    Question("Who painted the Mona Lisa?", ("Vinci",)),
    Question("What is the chemical formula of water?", ("H2O", "H₂O")),
    Question("What color is the sky on a clear day?", ("blue", "Blue")),
    Question("What is the opposite of hot?", ("cold", "Cold")),
    Question("Which month comes after June?", ("July",)),
    Question("What do bees make?", ("honey", "Honey")),
    Question("How many minutes are there in an hour?", ("60", "sixty", "Sixty")),
    Question("What is 2 + 2?", ("4", "four", "Four")),
)
