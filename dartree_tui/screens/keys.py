"""Keys of the main screen, in one table: the footer, the help screen and the keymap read it.

A binding's id is its name in the `[keys]` section of the settings file. Plain characters work
wherever the prompt does not have the focus; function and control keys work everywhere.
"""

from __future__ import annotations

from textual.binding import Binding

MAIN_BINDINGS: list[Binding] = [
    Binding("f1,question_mark", "app.help", "help", key_display="f1", id="help"),
    Binding("escape", "escape", "stop", id="escape", tooltip="stop; leave the prompt"),
    Binding("space,f5", "pause", "pause", key_display="space", id="pause"),
    Binding("s,f7", "step_mode", "step mode", key_display="s", id="step-mode"),
    Binding("n,f8", "step('stage')", "step", key_display="n", id="step-stage"),
    Binding("N,shift+f8", "step('round')", "step a round", show=False, id="step-round"),
    Binding("left_square_bracket", "round(-1)", "round", key_display="[ ]", id="round-back"),
    Binding("right_square_bracket", "round(1)", "later round", show=False, id="round-on"),
    Binding("left_curly_bracket", "turn(-1)", "earlier turn", show=False, id="turn-back"),
    Binding("right_curly_bracket", "turn(1)", "later turn", show=False, id="turn-on"),
    Binding("slash,f9", "app.find", "find", key_display="/", id="find"),
    Binding("c,f3", "app.compare", "compare", key_display="c", id="compare"),
    Binding("t", "outline", "tree/grid", id="outline"),
    Binding("p", "provenance", "origin", id="provenance"),
    Binding("y", "app.copy_answer", "copy", id="copy-answer"),
    Binding("f", "follow", "follow", id="follow"),
    Binding("i", "type", "type", id="type"),
    Binding("w", "worst", "worst round", show=False, id="worst"),
    Binding("v", "states", "filter nodes by state", show=False, id="states"),
    Binding("r", "selection_round", "round of the selection", show=False, id="selection-round"),
    Binding("Y", "app.copy_code", "copy code block", show=False, id="copy-code"),
    Binding("e", "app.export", "export as Markdown", show=False, id="export"),
    Binding("m", "whole", "maximise", show=False, id="whole"),
    Binding("f6", "next_pane", "next pane", show=False, id="next-pane"),
    Binding("1", "toggle_pane('tree')", "show or hide the tree", show=False, id="pane-tree"),
    Binding("2", "toggle_pane('timeline')", "… the timeline", show=False, id="pane-timeline"),
    Binding("3", "toggle_pane('chat')", "… the chat", show=False, id="pane-chat"),
    Binding("4", "toggle_pane('node')", "… the node", show=False, id="pane-node"),
    Binding("5", "toggle_pane('stats')", "… the statistics", show=False, id="pane-stats"),
]

APP_BINDINGS: list[Binding] = [
    Binding("ctrl+q", "quit", "quit", priority=True, show=False, id="quit"),
    Binding("ctrl+z", "suspend_process", "suspend", priority=True, show=False, id="suspend"),
    Binding("ctrl+c", "interrupt", "copy or stop", show=False, priority=True, id="interrupt"),
    Binding("f2", "settings", "settings", id="settings"),
    Binding("f4", "models", "models", show=False, id="models"),
    Binding(
        "ctrl+r", "again", "ask again; restart a lost worker; load again", show=False, id="again"
    ),
    Binding("ctrl+g", "go_on", "go on with an unfinished answer", show=False, id="go-on"),
    Binding("ctrl+n", "new", "new conversation", show=False, id="new"),
    Binding("ctrl+s", "save", "save with trees", show=False, id="save"),
    Binding("ctrl+o", "open", "open a conversation", show=False, id="open"),
    Binding("f10", "system_prompt", "system prompt", show=False, id="system-prompt"),
    Binding("f11", "calibrate", "measure plain decoding", show=False, id="calibrate"),
]
