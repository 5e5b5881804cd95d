"""System messages of the families: the rules, and the answer format of the servers."""

from __future__ import annotations

_REACT = "Answer in this form:\nThought:\n<what you think>\n\nAction:\n<your action>"

TEXTCRAFT = f"""You craft items as in Minecraft. The first message lists crafting recipes and the goal.
Actions:
- get N ITEM: fetch a raw ingredient from the surroundings, e.g. get 1 lapis lazuli
- craft N ITEM using N INGREDIENT, N INGREDIENT: e.g. craft 1 golden carrot using 8 gold nugget, 1 carrot
- inventory: see what you have
Always give quantities. Craft only by the listed recipes. Where a recipe names a kind, such as planks, any member of it will do, such as \
dark oak planks. Do not say where an item comes from.
{_REACT}"""

# AgentGym's own text says "pick up", which the world does not understand, and leaves `drop` out
BABYAI = f"""You are in a room of a grid world and have a goal. Each observation ends with the actions that are possible now, such as:
- turn left, turn right, move forward
- go to OBJECT ID, e.g. go to red ball 1
- pickup OBJECT ID, e.g. pickup blue key 1; one object at a time
- drop: put down what you carry
- go through DOOR ID: an open door
- toggle and go through DOOR ID: a closed door, or a locked one if you carry the key of its colour
- toggle: open or close the door right in front of you
{_REACT}"""

SCIWORLD = f"""You carry out science experiments in a simulated house. Actions, where OBJ is an object and LOC a place:
open OBJ, close OBJ: containers and doors | activate OBJ, deactivate OBJ: devices | connect OBJ to OBJ, disconnect OBJ: electrical parts
use OBJ, use OBJ on OBJ | look around, look at OBJ, look in OBJ, read OBJ | move OBJ to OBJ, pick up OBJ, put down OBJ
pour OBJ into OBJ, dunk OBJ into OBJ, mix OBJ | go to LOC | eat OBJ, flush OBJ
focus on OBJ: declare the object that the task is about; a wrong one fails the task
wait: let 10 moments pass | wait1: let one pass | task: read the task again | inventory: see what you carry
{_REACT}"""

ALFWORLD = f"""You solve a task in a household. The first message describes the room and the goal. Every observation lists the available \
actions; choose exactly one of them. "Nothing happens" means that the action was not possible. Think where it helps, otherwise act directly.
{_REACT}
The part with the thought may be left out."""

WEBSHOP = f"""You shop on a web site, following the instruction on the page. Every observation shows the page and what can be done there.
- search[KEYWORDS]: where there is a search bar; choose the words with care
- click[VALUE]: VALUE must be one of the clickable values shown
Anything else has no effect.
{_REACT}"""

SEARCHQA = """Answer the question. Think first, between <think> and </think>. If you need knowledge, write a query between <search> and \
</search> and stop there: the results come back between <information> and </information>, which you never write yourself. When you know \
the answer, write it, as short as possible, between <answer> and </answer>. You answer once."""

SQLGYM = """The message describes an SQLite database and asks a question. Explain your thoughts, then give one SQL statement, on one line \
and without comments, that answers it:
Thought: <what you think>

Action: ```sql
SELECT ... ;
```"""

WEBARENA = """You use a web browser to reach an objective. Each observation shows the accessibility tree of the page, its address, the \
open tabs and your last action.
On the page: click [id] | type [id] [text] [1 to press Enter after it, 0 not to] | hover [id] | press [keys] | scroll [down or up]
Tabs: new_tab | tab_focus [number] | close_tab
Addresses: goto [url] | go_back | go_forward
To finish: stop [answer]. Leave the answer empty where none is asked for; write N/A if the objective cannot be reached.
http://homepage.com lists the other sites, and http://homepage.com/password.html their accounts.
Give one action at a time, one that is possible on the page shown, between triple backticks, e.g.
In summary, the next action I will perform is ```click [1234]```"""

MAZE = f"""You are in a maze and want to reach the goal in as few moves as possible. Each observation gives the goal's position, yours, \
and the walls around you. Moving right adds 1 to y, moving down adds 1 to x; a move into a wall leaves you where you are.
Actions: move up, move down, move left, move right
{_REACT}"""

WORDLE = f"""Guess a hidden word of 5 letters within 6 guesses, with as few as you can. Write the letters with blanks between them, e.g. \
s h i r e. The answer has one letter for each of yours:
b: not in the word | y: in the word, at another place | g: in the word, at this place
A guess must be a word of the given vocabulary, and should fit all answers so far.
{_REACT}"""

_CALL = """Answer in this form, with one action at a time and at most three sentences of thought:
Thought: <what you think>

Action: <name> with Action Input: <its arguments as JSON>
for example: Action: finish with Action Input: {"answer": "yes"}"""


def _tool_use(what: str, functions: str, advice: str) -> str:
    return f"You solve a task about {what} by calling these actions:\n{functions.strip()}\n{advice}\n{_CALL}"


WEATHER = _tool_use(
    "the weather",
    """
get_user_current_date(): today, as YYYY-MM-DD
get_user_current_location(): the user's city
get_latitude_longitude(name): where a place is
get_elevation(latitude, longitude)
get_distance(latitude1, longitude1, latitude2, longitude2): in kilometres
get_historical_temp | get_historical_rain | get_historical_snow (latitude, longitude, start_date, end_date)
get_temp_forecast | get_rain_forecast | get_snow_forecast (latitude, longitude, start_date, end_date)
get_current_temp | get_current_rain | get_current_snow (latitude, longitude, current_date)
get_historical_air_quality_index(latitude, longitude, start_date, end_date)
get_current_air_quality_index(latitude, longitude, current_date)
get_air_quality_level(air_quality_index): good, fair, moderate, poor, very poor or extremely poor
check_valid_actions(): the actions possible now
finish(answer): a string, number or list; ends the task
""",
    "Never invent coordinates: get them with get_latitude_longitude.",
)

MOVIE = _tool_use(
    "films",
    """
get_search_movie(movie_name): id, overview and title
get_movie_details(movie_id): budget, genres, revenue, vote_average, release_date
get_movie_production_companies(movie_id) | get_movie_production_countries(movie_id)
get_movie_cast(movie_id) | get_movie_crew(movie_id): ten people at most; the crew are directors, producers and writers
get_movie_keywords(movie_id) | get_movie_alternative_titles(movie_id) | get_movie_translation(movie_id)
get_search_person(person_name): id and name
get_person_details(person_id): biography, birthday, place_of_birth
get_person_cast(person_id) | get_person_crew(person_id): ten films at most
get_person_external_ids(person_id): imdb_id, facebook_id, instagram_id, twitter_id
check_valid_actions(): the actions possible now
finish(answer): a string, number or list; ends the task
All ids are strings.
""",
    "Never invent an id: get it with get_search_movie or get_search_person.",
)

ACADEMIA = _tool_use(
    "scientific papers and their authors",
    """
loadPaperNet(): papers, linked by citations
loadAuthorNet(): authors, linked by joint papers
neighbourCheck(graph, node): what is linked to node in PaperNet or AuthorNet
paperNodeCheck(node): a paper's authors, year, venue, n_citation, keywords, doc_type
authorNodeCheck(node): an author's name and org
authorEdgeCheck(node1, node2): the papers that two authors wrote together
finish(answer): a string, number or list; ends the task
""",
    "Load a net before anything else.",
)

SHEET = _tool_use(
    "a spreadsheet",
    """
open_sheet(name) | del_sheet(name) | get_all_values() | get_cell_value(position) | get_range_values(start_position, end_position)
update_cell(position, value) | update_range(start_position, end_position, values_list): a list of lists
insert_rows(values_list, row_idx) | insert_cols(values_list, col_idx): lists of lists
delete_batch_data(dimension, index_list): dimension is row or col
update_cell_by_formula(start_position, end_position, position_list, result_position, operator)
get_value_by_formula(start_position, end_position, position_list, operator)
    either position_list, or start_position and end_position; operator is SUM, AVERAGE, COUNT, MAX, MIN, MINUS or PRODUCT
sort_sheet_by_col(col_num, order): order is asc or des | freeze_data(dimension, num): dimension is rows or columns
merge_cells(start_position, end_position) | filter_cells(query, in_row, in_column): positions of the cells that match
update_note(position, content) | get_note(position) | get_A1_annotation(row, col): a position such as B3
finish(): ends the task
""",
    "Open the sheet that the task names, then read it with get_all_values. Positions are written as B3; rows and columns count from 1. "
    "Freeze the first row before you sort.",
)

TODO = _tool_use(
    "a to-do list",
    """
get_user_current_date(): today, as YYYY-MM-DD
get_user_current_location(): the user's city
get_projects(): id, name, order, color and is_favorite of each
update_project(project_id, is_favorite): is_favorite is True or False
get_tasks(project_id): id, content (the name), is_completed, priority from 1 to 4 (urgent), due_date
get_task_description(task_id) | get_task_duration(task_id)
complete_task(task_id) | update_task(task_id, due_date) | delete_task(task_id)
check_valid_actions(): the actions possible now
finish(answer): the answer to a question, or "done" where something was to be done; ends the task
""",
    "Never invent an id: get it with get_projects or get_tasks.",
)
