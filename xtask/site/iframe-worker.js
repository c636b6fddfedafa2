// Lets the search of the site run from a folder: a browser starts no worker from a `file:` address.
// The script of the worker runs in a hidden frame, with the two functions of a worker that it calls.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    const inside = this.frame.contentWindow;
    window.addEventListener("message", ({ source, data }) => {
      if (source === this.frame.contentWindow) {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      }
    });
    inside.document.open();
    inside.document.write(`<body><script>
      postMessage = (data) => parent.postMessage(data, "*");
      importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done) => {
        const script = document.createElement("script");
        Object.assign(script, { src: url, onload: done });
        document.body.append(script);
      })), Promise.resolve());
    <\/script><script src="${url}"><\/script></body>`);
    inside.document.close();
    // `document.open` has removed all listeners of the window.
    this.loaded = new Promise((resolve) => inside.addEventListener("load", resolve));
  }

  postMessage(data) {
    const event = { data: structuredClone(data) };
    this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", event)));
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") {
  window.Worker = FrameWorker;
}
