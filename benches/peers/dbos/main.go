// The cycle as a DBOS workflow on PostgreSQL, behind net/http: four durable steps, a message that
// is waited for, three more steps.
//
//	dbos ADDRESS                   the database's address is in DATABASE_URL
//	POST /message?key=KEY          starts a workflow, and answers when it waits
//	POST /decision?key=KEY         sends it the decision, and answers with its final text
package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
)

type event struct {
	Call   string `json:"call,omitempty"`
	ID     string `json:"id,omitempty"`
	Amount int    `json:"amount,omitempty"`
	Status string `json:"status,omitempty"`
	Ticket string `json:"ticketId,omitempty"`
	Text   string `json:"text,omitempty"`
}

type decision struct {
	Status string `json:"status"`
}

// How long the workflow would wait for its decision, and a caller for the pause.
const (
	decisionTimeout = 240 * time.Hour
	pauseTimeout    = time.Minute
)

func step(ctx dbos.Context, name string, made event) (event, error) {
	return dbos.RunAsStep(ctx, func(context.Context) (event, error) { return made, nil },
		dbos.WithStepName(name))
}

func reimbursement(ctx dbos.Context, _ string) (string, error) {
	var events []event
	for _, one := range []struct {
		name string
		made event
	}{
		{"model", event{Call: "ask_for_approval", ID: "c1", Amount: 200}},
		{"ask_for_approval", event{ID: "c1", Status: "pending", Ticket: "reimbursement-ticket-001"}},
		{"acknowledgement", event{Text: "The request was sent for approval."}},
	} {
		made, err := step(ctx, one.name, one.made)
		if err != nil {
			return "", err
		}
		events = append(events, made)
	}
	if err := dbos.SetEvent(ctx, "paused", events); err != nil {
		return "", err
	}
	said, err := dbos.Recv[decision](ctx, "decision", decisionTimeout)
	if err != nil {
		return "", err
	}
	if said.Status != "approved" {
		return "It was not approved.", nil
	}
	if _, err := step(ctx, "model", event{Call: "reimburse", ID: "c2", Amount: 200}); err != nil {
		return "", err
	}
	if _, err := step(ctx, "reimburse", event{ID: "c2", Status: "ok"}); err != nil {
		return "", err
	}
	final, err := step(ctx, "final", event{Text: "Your $200 has been reimbursed."})
	return final.Text, err
}

func main() {
	ctx, err := dbos.NewContext(context.Background(), dbos.Config{
		DatabaseURL: os.Getenv("DATABASE_URL"),
		AppName:     "reimbursement",
		Logger: slog.New(slog.NewTextHandler(os.Stderr,
			&slog.HandlerOptions{Level: slog.LevelError})),
	})
	check(err)
	dbos.RegisterWorkflow(ctx, reimbursement)
	check(dbos.Launch(ctx))

	// The handle of a workflow that was started here hears of its end without asking the database.
	var running sync.Map
	http.HandleFunc("POST /message", func(w http.ResponseWriter, r *http.Request) {
		key := r.FormValue("key")
		workflow, err := dbos.RunWorkflow(ctx, reimbursement, "Please reimburse $200",
			dbos.WithWorkflowID(key))
		if err == nil {
			running.Store(key, workflow)
			_, err = dbos.GetEvent[[]event](ctx, key, "paused", pauseTimeout)
		}
		answer(w, "paused", err)
	})
	http.HandleFunc("POST /decision", func(w http.ResponseWriter, r *http.Request) {
		key := r.FormValue("key")
		workflow, known := running.LoadAndDelete(key)
		if !known {
			answer(w, "", fmt.Errorf("no workflow %q waits", key))
			return
		}
		var text string
		err := dbos.Send(ctx, key, decision{"approved"}, "decision")
		if err == nil {
			text, err = workflow.(dbos.WorkflowHandle[string]).GetResult()
		}
		answer(w, text, err)
	})
	check(http.ListenAndServe(os.Args[1], nil))
}

func answer(w http.ResponseWriter, text string, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprint(w, text)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "dbos:", err)
		os.Exit(1)
	}
}
