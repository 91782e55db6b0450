"""A sampler whose class is named where an object of it is wanted."""


class Sampler:
    def open(self, place: str, how: object) -> None:
        raise NotImplementedError

    def follow(self, model: object, tokenizer: object, how: object) -> None:
        raise NotImplementedError
