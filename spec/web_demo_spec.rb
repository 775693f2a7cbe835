# frozen_string_literal: true

require "net/http"
require_relative "support/browser"
require_relative "support/web_demo"

# A real browser on real servers: the page, StreamApp, the streamer, Presence and PostgreSQL, nothing in between.
RSpec.describe "bin/demo --web" do
  # As demo/web/configuration.rb has them.
  ttl = 5
  heartbeat = 1

  # What a tab shows of its room: in one look, since the page may change at any moment.
  room_in_page = <<~JS
    const text = (element, selector) => element.querySelector(selector).textContent;
    return Array.from(document.querySelectorAll("#seats > :not(.leaving)"), (row) => ({
      name: text(row, ".name"),
      server: text(row, ".server"),
      choice: text(row, ".where"),
      colour: getComputedStyle(row.querySelector(".disc")).backgroundColor,
      mine: row.classList.contains("mine"),
      lost: row.classList.contains("lost"),
    }));
  JS

  let(:demo) { WebDemo.new(SpecDatabase.url) }

  before { wait_until("the demo runs", within: 30) { demo.ready? } }

  after do |example|
    example.reporter.message(demo.log) if example.exception
    demo.stop
    schemas.each { |schema| SpecDatabase.sql("DROP SCHEMA #{schema} CASCADE") }
  end

  # The demo writes into schemas of its own; those of a killed one stay.
  def schemas
    SpecDatabase.sql("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'pgbus_native_demo_%'").map(&:values).flatten
  end

  # Whether it runs; one that nobody has waited for yet does not.
  def alive?(pid)
    !File.read("/proc/#{pid}/stat").include?(") Z ")
  rescue Errno::ENOENT, Errno::ESRCH
    false
  end

  describe "in a browser" do
    before { skip Browser.unavailable if Browser.unavailable }

    after(:context) { Browser.quit_shared } # rubocop:disable RSpec/BeforeAfterAll

    after do |example|
      example.reporter.message("see #{browser.screenshots(example.description).join(", ")}") if example.exception
      browser.close_all
    end

    def browser
      Browser.shared
    end

    # The seats that the tab shows, each a Hash.
    define_method(:seats) { |tab| browser.run(tab, room_in_page) }

    # Opens a tab on each of these servers, one after the other, and waits until all of them show all.
    def open_tabs(*servers)
      tabs = servers.map { |server| browser.open(demo.addresses.fetch(server)) }
      wait_for_seats(tabs, tabs.size)
      tabs
    end

    def wait_for_seats(tabs, number, within: 10)
      wait_until("every tab shows #{number} seats", within:) { tabs.all? { |tab| seats(tab).size == number } }
    end

    def click(tab, selector)
      browser.within(tab) { |driver| driver.find_element(css: selector).click }
    end

    def text(tab, selector)
      browser.within(tab) { |driver| driver.find_element(css: selector).text }
    end

    it "shows three tabs three seats each, with names, servers and colours of their own" do
      tabs = open_tabs("A", "B", "A")
      rooms = tabs.map { |tab| seats(tab) }

      expect(rooms.map { |seats| seats.map { |seat| seat["server"] } }).to all(eq(%w[A B A]))
      expect(rooms.map { |seats| seats.map { |seat| seat.slice("name", "colour") } }.uniq.size).to eq(1)
      expect(rooms.first.map { |seat| seat["name"] }.uniq.size).to eq(3)
      expect(rooms.first.map { |seat| seat["colour"] }.uniq.size).to eq(3)
      expect(rooms.map { |seats| seats.index { |seat| seat["mine"] } }).to eq([0, 1, 2])
      expect(tabs.map { |tab| text(tab, "#count") }).to all(eq("3 seats taken"))
    end

    it "frees a seat as soon as its tab is closed, long before its time is over" do
      first, second, third = open_tabs("A", "A", "B")
      browser.close(first)

      wait_for_seats([second, third], 2, within: ttl - heartbeat)
      expect(seats(third).map { |seat| seat["server"] }).to eq(%w[A B])
    end

    it "shows everybody what one has chosen, on both servers, until he takes it back" do
      one, other = open_tabs("A", "B")
      click(one, "[data-choice=curry]")

      wait_until("the choice is seen") { [one, other].all? { |tab| seats(tab).first["choice"] == "Curry house" } }
      expect(text(other, "[data-choice=curry] .chosen")).to eq(seats(one).first["name"])
      expect(browser.run(one, "return document.querySelector('[aria-pressed=true]').dataset.choice")).to eq("curry")

      click(one, "[data-choice=curry]")
      wait_until("the choice is gone") { text(other, "[data-choice=curry] .chosen").empty? }
    end

    it "takes a name for text, whatever is in it" do
      one, other = open_tabs("A", "B")
      name = "<img src=x onerror=x()>"
      browser.within(one) { |driver| driver.find_element(id: "name").send_keys([:control, "a"], name, :enter) }
      wait_until("the new seat is taken") { seats(other).any? { |seat| seat["name"] == name } }
      click(one, "[data-choice=pizza]")

      wait_until("the choice is seen") { text(other, "[data-choice=pizza] .chosen") == name }
      expect(text(one, "#seats .mine .name")).to eq(name)
      expect(browser.run(other, "return document.images.length")).to eq(0)
    end

    it "lets the seats of a killed server fade until their time is over, and has them back when it runs again" do
      one, two, lost = open_tabs("A", "A", "B")
      click(lost, "[data-choice=salad]")
      wait_until("the choice is seen") { seats(one).last["choice"] == "Salad bar" }
      process = demo.processes.fetch("B")

      click(one, "[data-server=B] .order")
      wait_until("the seat fades") { [one, two].all? { |tab| seats(tab).last["lost"] } }
      expect(seats(one).map { |seat| seat["lost"] }).to eq([false, false, true])
      expect(alive?(process)).to be(false)
      wait_until("the lost tab knows") { text(lost, "#trouble").include?("Server B does not answer") }
      wait_for_seats([one, two], 2, within: ttl + (2 * heartbeat) + 3)

      click(two, "[data-server=B] .order")
      wait_for_seats([one, two, lost], 3, within: 30)
      wait_until("the choice is back") { seats(one).last["choice"] == "Salad bar" }
      expect(seats(one).last).to include("server" => "B", "lost" => false)
      wait_until("the tab is well") { text(lost, "#trouble").empty? }
    end

    it "fits a phone: nothing is wider than its screen, and fingers hit what there is to hit" do
      tab, = open_tabs("A", "B")
      browser.resize(tab, 390, 844)

      expect(browser.run(tab, "return document.documentElement.scrollWidth")).to be <= 390
      sizes = browser.run(tab, <<~JS)
        return Array.from(document.querySelectorAll("button:not([hidden]), input"), (element) => {
          const box = element.getBoundingClientRect();
          return Math.min(box.width, box.height);
        });
      JS
      expect(sizes.size).to be > 7
      expect(sizes).to all(be >= 44)
    end
  end

  describe "asked without a browser" do
    def ask(path, body = nil, type: "application/json")
      uri = URI.join(demo.addresses.fetch("A"), path)
      body ? Net::HTTP.post(uri, body, "content-type" => type) : Net::HTTP.get_response(uri)
    end

    def stream(**query)
      token = JSON.parse(ask("/welcome").body).fetch("stream")
      ask("/pgbus/streams/#{token}?#{URI.encode_www_form(query)}").code
    end

    it "takes no order from another site's form, none that is not JSON, and none against itself" do
      order = JSON.generate(do: "kill", server: "B")

      expect(ask("/servers", order, type: "text/plain").code).to eq("422")
      expect(ask("/servers", "kill B").code).to eq("422")
      expect(ask("/servers", JSON.generate(do: "kill", server: "A")).code).to eq("422")
      expect(ask("/servers", JSON.generate(do: "rm", server: "B")).code).to eq("422")
      expect(demo.processes.values).to all(satisfy { |pid| alive?(pid) })
    end

    it "sets no state for a connection that is not there, and none that the page does not have" do
      expect(ask("/state", JSON.generate(connection: "0123456789abcdef", choice: "curry")).code).to eq("404")
      expect(ask("/state", JSON.generate(connection: "a\0b", choice: "curry")).code).to eq("422")
      expect(ask("/state", JSON.generate(connection: "0123456789abcdef", choice: "<b>")).code).to eq("422")
    end

    it "lets nobody in without a seat, a name and a colour" do
      expect(stream(seat: "s", name: "Ada")).to eq("403")
      expect(stream(seat: "s", name: "Ada", colour: "12")).to eq("403")
      expect(stream(seat: "s", name: " ", colour: "1")).to eq("403")
      expect(stream(seat: "s", name: "A\nda", colour: "1")).to eq("403")
      expect(stream(name: "Ada", colour: "1")).to eq("403")
    end

    it "serves its own files and no others, under a policy that allows no foreign script" do
      expect(%w[/ /room.js /style.css].map { |path| ask(path).code }).to all(eq("200"))
      expect(%w[/run.rb /..%2frun.rb /page/index.html].map { |path| ask(path).code }).to all(eq("404"))
      expect(ask("/")["content-security-policy"]).to start_with("default-src 'self'")
    end
  end

  describe "at its end" do
    def wait_for_end(processes)
      wait_until("the processes are gone", within: 30) { processes.none? { |pid| alive?(pid) } }
    end

    it "leaves no process and no table behind after Ctrl-C, which reaches all of them" do
      processes = [demo.pid, *demo.processes.values]
      expect(schemas.size).to eq(1)
      processes.each { |pid| Process.kill(:INT, pid) }

      wait_for_end(processes)
      expect(schemas).to be_empty
      expect(demo.log).to end_with("Ended; nothing is left behind.\n")
    end

    it "leaves none after SIGTERM either" do
      processes = [demo.pid, *demo.processes.values]
      Process.kill(:TERM, demo.pid)

      wait_for_end(processes)
      expect(schemas).to be_empty
    end

    it "leaves no server behind where it is killed itself" do
      processes = demo.processes.values
      Process.kill(:KILL, demo.pid)

      expect { wait_for_end(processes) }.not_to raise_error
    end
  end
end
