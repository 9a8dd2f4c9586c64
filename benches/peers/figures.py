"""Figures of peers, line by line. Standard library only.

figures.py ours CLIENTS    the lines of `countersign bench --json` become one line like the peers'
figures.py round N         writes a peer's line as that of round N
figures.py table FILE      the ratios of ours to each peer: medians of the rounds in the file
figures.py ports N         N free ports of 127.0.0.1
"""

import json
import socket
import statistics
import sys


def ours(clients):
    figures = [json.loads(line) for line in sys.stdin]
    figures = {figure["figure"]: figure for figure in figures}

    def phase(name):
        return {"p50": figures[name]["value"], "p99": figures[name]["beside"]["p99"]}

    print(json.dumps({
        "peer": "countersign",
        "clients": clients,
        "cycles_per_second": figures["cycles_per_second"]["value"],
        "decision_to_final_ms": phase("decision_to_final"),
        "message_to_pause_ms": phase("message_to_pause"),
        # The bench ends at the first error, and prints no figure then.
        "errors": 0,
    }))


def told(number):
    line = json.load(sys.stdin)
    order = ["peer", "clients", "cycles_per_second", "decision_to_final_ms", "message_to_pause_ms"]
    print(json.dumps({name: line[name] for name in [*order, "errors"]} | {"round": number}))


ROW = "{:>7}  {:<12}" + " {:>9}" * 5 + " {:>7} {:>11} {:>11}"
HEAD = [
    "clients", "peer", "cycles/s", "d-f p50", "d-f p99", "m-p p50", "m-p p99", "errors",
    "rate ratio", "time ratio",
]


def table(file):
    """A line of a peer is compared with ours of the same round and as many clients."""
    runs = {}
    with open(file, encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            runs.setdefault(line["clients"], {}).setdefault(line["peer"], {})[line["round"]] = line

    def rate(run):
        return run["cycles_per_second"]

    def half(name, quantile):
        return lambda run: run[name][quantile]

    decision = half("decision_to_final_ms", "p50")

    def median(figure, of):
        return "{:g}".format(float("{:.3g}".format(statistics.median(map(figure, of)))))

    def ratio(figure, of, to):
        """Ours by the peer's, or the peer's by ours, of the rounds that both have finished."""
        both = [(of[n], to[n]) for n in of if n in to]
        values = [figure(a) / figure(b) for a, b in both if figure(a) and figure(b)]
        return "{:.2f}".format(statistics.median(values)) + " x" if values else "-"

    print("\nMedians of rounds; times in ms (d-f: decision to final text, m-p: message to pause).")
    print("Rate ratio: our cycles a second by the peer's; time ratio: the peer's d-f p50 by ours.")
    print("More than 1 is in favour of ours; the ratios are made round by round.\n")
    print(ROW.format(*HEAD))
    for clients, peers in sorted(runs.items()):
        us = peers.get("countersign", {})
        for peer, rounds in peers.items():
            of = list(rounds.values())
            print(ROW.format(
                clients, peer, median(rate, of), median(decision, of),
                median(half("decision_to_final_ms", "p99"), of),
                median(half("message_to_pause_ms", "p50"), of),
                median(half("message_to_pause_ms", "p99"), of),
                sum(run["errors"] for run in of),
                ratio(rate, us, rounds), ratio(decision, rounds, us),
            ))


def ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    print(*[one.getsockname()[1] for one in sockets])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ours", clients]:
            ours(int(clients))
        case ["round", number]:
            told(int(number))
        case ["table", file]:
            table(file)
        case ["ports", count]:
            ports(int(count))
        case _:
            sys.exit(__doc__)
