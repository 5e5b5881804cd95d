from ludus.environments import Reply


class Climb:
    """Climb to the floor you are sent to: jump up five floors, or walk up one."""

    max_turns = 9
    actions = ("jump", "walk")
    tasks = {"train": [{"to": n} for n in range(30) if n % 4], "test": [{"to": n} for n in range(4, 30, 4)]}

    def setup(self, task, rng):
        self.at, self.to = 0, task["to"]
        return f"floor {self.at}, go to {self.to}"

    def act(self, text):
        self.at += 5 if text == "jump" else 1
        return Reply(f"floor {self.at}, go to {self.to}", reward=self.at == self.to, done=self.at >= self.to)

    def solve(self):
        return "jump" if self.at + 5 <= self.to else "walk"
