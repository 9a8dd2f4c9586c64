// The client of the peers that speak HTTP: what `countersign bench --only cycles` does to ours, done
// to them. Each client says a message, waits for the pause, decides, and waits for the final text,
// one cycle after another on one connection.
//
//	load PEER BASE_URL CLIENTS SECONDS     PEER: dbos, restate or adk
//
// It waits until a cycle works, runs some uncounted, and prints one JSON object.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// How long a server may take until its first cycle works.
	readyTimeout = 90 * time.Second
	// How long one request may take; more is an error.
	requestTimeout = 60 * time.Second
	// How long it runs before anything is counted. Ours gets half a second; Node and Python
	// compile while they run.
	warmUp = 2 * time.Second
	// How long a client rests after an error.
	afterError = 10 * time.Millisecond
	// How many errors are shown.
	errorsShown = 2
)

// A client of one peer, with a connection of its own.
type client struct {
	base string
	http http.Client
}

// The two halves of a cycle. `message` returns what `decision` needs beside the key.
type peer struct {
	message  func(c *client, key string) (string, error)
	decision func(c *client, key, call string) (string, error)
}

var peers = map[string]peer{
	"dbos": {
		func(c *client, key string) (string, error) {
			return c.say("POST", "/message?key="+key, nil)
		},
		func(c *client, key, _ string) (string, error) {
			return c.say("POST", "/decision?key="+key, nil)
		},
	},
	"restate": {
		func(c *client, key string) (string, error) {
			text := map[string]any{"text": "Please reimburse $200 for conference travel"}
			if _, err := c.say("POST", "/reimbursement/"+key+"/run/send", text); err != nil {
				return "", err
			}
			return c.say("POST", "/reimbursement/"+key+"/paused", nil)
		},
		func(c *client, key, _ string) (string, error) {
			status := map[string]any{"status": "approved"}
			if _, err := c.say("POST", "/reimbursement/"+key+"/decide", status); err != nil {
				return "", err
			}
			return c.say("GET", "/restate/workflow/reimbursement/"+key+"/attach", nil)
		},
	},
	"adk": {
		func(c *client, key string) (string, error) {
			part := map[string]any{"text": "Please reimburse $200 for conference travel"}
			events, err := c.say("POST", "/run_sse", adkMessage(key, part))
			if err != nil {
				return "", err
			}
			return adkCall(events)
		},
		func(c *client, key, call string) (string, error) {
			response := map[string]any{"status": "approved"}
			part := map[string]any{"function_response": map[string]any{
				"id": call, "name": "ask_for_approval", "response": response,
			}}
			return c.say("POST", "/run_sse", adkMessage(key, part))
		},
	},
}

func adkMessage(session string, part map[string]any) map[string]any {
	return map[string]any{
		"app_name": "reimburse", "user_id": "user", "session_id": session, "streaming": false,
		"new_message": map[string]any{"role": "user", "parts": []any{part}},
	}
}

// The id of the long-running call in a stream of ADK's events.
func adkCall(events string) (string, error) {
	for _, line := range strings.Split(events, "\n") {
		var event struct {
			LongRunningToolIds []string `json:"longRunningToolIds"`
		}
		data, is := strings.CutPrefix(line, "data:")
		if is && json.Unmarshal([]byte(data), &event) == nil && len(event.LongRunningToolIds) > 0 {
			return event.LongRunningToolIds[0], nil
		}
	}
	return "", fmt.Errorf("nothing is held: %s", shortened(events))
}

// One request, and its whole answer.
func (c *client) say(method, path string, body any) (string, error) {
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return "", err
		}
		sent = bytes.NewReader(text)
	}
	request, err := http.NewRequest(method, c.base+path, sent)
	if err != nil {
		return "", err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, response.Status, shortened(string(text)))
	}
	return string(text), err
}

func shortened(text string) string { return text[:min(len(text), 300)] }

// What the clients have measured together.
type times struct {
	sync.Mutex
	pause, final []time.Duration
	errors       int
}

func (p peer) cycle(c *client, key string, t *times) error {
	since := time.Now()
	call, err := p.message(c, key)
	if err != nil {
		return err
	}
	pause := time.Since(since)
	since = time.Now()
	text, err := p.decision(c, key, call)
	if err != nil {
		return err
	}
	final := time.Since(since)
	if !strings.Contains(text, "has been reimbursed") {
		return fmt.Errorf("no final text: %s", shortened(text))
	}
	t.Lock()
	defer t.Unlock()
	t.pause = append(t.pause, pause)
	t.final = append(t.final, final)
	return nil
}

// Runs all clients until the time is over; each finishes its cycle.
func (p peer) load(clients []*client, name string, lasting time.Duration) *times {
	var all times
	var wait sync.WaitGroup
	until := time.Now().Add(lasting)
	for n, c := range clients {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for k := 0; time.Now().Before(until); k++ {
				err := p.cycle(c, fmt.Sprintf("%s-%d-%d", name, n, k), &all)
				if err == nil {
					continue
				}
				all.Lock()
				all.errors++
				if all.errors <= errorsShown {
					fmt.Fprintln(os.Stderr, "load:", err)
				}
				all.Unlock()
				time.Sleep(afterError)
			}
		}()
	}
	wait.Wait()
	return &all
}

// Tries cycles until one works.
func (p peer) ready(c *client, name string) {
	since := time.Now()
	for k := 0; ; k++ {
		err := p.cycle(c, fmt.Sprintf("%s-%d", name, k), new(times))
		if err == nil {
			return
		}
		if time.Since(since) > readyTimeout {
			fail(fmt.Errorf("no cycle works: %w", err))
		}
		time.Sleep(10 * afterError)
	}
}

// The same quantile as that of `countersign bench`, in milliseconds.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	at := min(int(float64(len(sorted))*q), len(sorted)-1)
	return rounded(sorted[at].Seconds() * 1e3)
}

// Three significant digits, as `countersign bench` prints them.
func rounded(value float64) float64 {
	text := strconv.FormatFloat(value, 'g', 3, 64)
	short, _ := strconv.ParseFloat(text, 64)
	return math.Max(short, 0)
}

func phase(of []time.Duration) map[string]float64 {
	sort.Slice(of, func(i, j int) bool { return of[i] < of[j] })
	return map[string]float64{"p50": quantile(of, 0.5), "p99": quantile(of, 0.99)}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "load:", err)
	os.Exit(1)
}

func main() {
	if len(os.Args) != 5 {
		fail(fmt.Errorf("usage: load PEER BASE_URL CLIENTS SECONDS"))
	}
	p, known := peers[os.Args[1]]
	count, err := strconv.Atoi(os.Args[3])
	seconds, err2 := strconv.Atoi(os.Args[4])
	if !known || err != nil || err2 != nil || count < 1 {
		fail(fmt.Errorf("not understood: %v", os.Args[1:]))
	}
	clients := make([]*client, count)
	for n := range clients {
		transport := &http.Transport{DisableCompression: true}
		clients[n] = &client{os.Args[2], http.Client{Transport: transport, Timeout: requestTimeout}}
	}
	// Keys are new in every run, whatever the server's store has.
	name := strconv.FormatInt(time.Now().UnixNano(), 36)
	p.ready(clients[0], name+"-ready")
	p.load(clients, name+"-warm", warmUp)
	since := time.Now()
	all := p.load(clients, name, time.Duration(seconds)*time.Second)
	lasted := time.Since(since).Seconds()
	line, err := json.Marshal(map[string]any{
		"peer":                 os.Args[1],
		"clients":              count,
		"cycles_per_second":    rounded(float64(len(all.final)) / lasted),
		"decision_to_final_ms": phase(all.final),
		"message_to_pause_ms":  phase(all.pause),
		"errors":               all.errors,
	})
	if err != nil {
		fail(err)
	}
	fmt.Println(string(line))
}
