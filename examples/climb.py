from ludus.environments import Reply


class Climb:
    """Climb exactly as many floors as you are told: jump up five floors, or walk up one."""

    max_turns = 9
    actions = ("jump", "walk")
    tasks = {"train": [{"floors": n} for n in range(30) if n % 4], "test": [{"floors": n} for n in range(4, 30, 4)]}

    def setup(self, task, rng):
        self.left = task["floors"]
        return f"{self.left} floors to go"

    def act(self, text):
        self.left -= 5 if text == "jump" else 1
        return Reply(f"{self.left} floors to go", reward=self.left == 0, done=self.left <= 0)

    def solve(self):
        return "jump" if self.left >= 5 else "walk"
