"""An environment whose tools run in a sandbox, as an author would write it."""

from ludus.environments import Reply, tool
from ludus.sandboxes.sandbox import Limits


class Words:
    """Find the word in the file."""

    sandbox = "namespace"
    max_turns = 3
    tasks = {"train": [{"word": "red"}, {"word": "blue"}], "test": [{"word": "gold"}]}

    def setup(self, task, rng):
        self.word = task["word"]
        self.sandbox.write("word.txt", self.word)
        self.shell = self.sandbox.shell()
        return "What does word.txt say?"

    @tool
    def run(self, command: str):
        """Run a command."""
        done = self.shell.run(command, limits=Limits(time_s=600))
        return done.stdout + done.stderr or f"exit code {done.exit_code}"

    @tool
    def answer(self, word: str):
        """Give the answer."""
        return Reply("done", reward=word == self.word, done=True)


class PennedWords(Words):
    """The same, each session in a process of its own."""

    isolation = "process"
